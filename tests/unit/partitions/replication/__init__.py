"""Unit tests of `partitions/replication/`."""
