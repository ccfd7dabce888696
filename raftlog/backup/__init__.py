"""Backups of a cluster: its metadata and the record batches of its topics, in a folder or an object store."""
