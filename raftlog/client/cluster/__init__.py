"""The cluster as a client sees it: the HTTP API, metadata, and connections to the brokers."""
