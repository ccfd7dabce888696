"""Unit tests of `partitions/`."""
