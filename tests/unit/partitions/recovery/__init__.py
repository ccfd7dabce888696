"""Unit tests of `partitions/recovery/`."""
