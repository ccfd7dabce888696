"""Raft: elections, replication, membership, and the adapted pysyncobj node."""
