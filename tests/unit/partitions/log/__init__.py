"""Unit tests of `partitions/log/`."""
