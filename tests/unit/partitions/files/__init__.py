"""Unit tests of `partitions/files/`."""
