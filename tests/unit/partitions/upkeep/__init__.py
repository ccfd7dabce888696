"""Unit tests of `partitions/upkeep/`."""
