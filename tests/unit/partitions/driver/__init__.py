"""Unit tests of `partitions/driver/`."""
