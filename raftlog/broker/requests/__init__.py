"""Requests for partitions: produce, fetch and deletion, answered here or forwarded to the leader."""
