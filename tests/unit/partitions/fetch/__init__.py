"""Unit tests of `partitions/fetch/`."""
