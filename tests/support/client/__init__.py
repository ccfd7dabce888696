"""Fakes of brokers and clusters in memory, for tests of the client and of the HTTP API."""
