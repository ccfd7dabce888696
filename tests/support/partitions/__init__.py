"""Logs, replicas and replication that tests drive by hand."""
