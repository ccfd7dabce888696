"""Unit tests of `partitions/opening/`."""
