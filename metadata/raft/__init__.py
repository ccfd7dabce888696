"""Consensus: the sans-I/O Raft engine, with elections, replication and membership around pysyncobj's core."""
