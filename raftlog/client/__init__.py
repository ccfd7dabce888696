"""The client library: what user programs, the CLI and Spark speak to a cluster with."""
