"""Unit tests of `partitions/replica/`."""
