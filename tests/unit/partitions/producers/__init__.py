"""Unit tests of `partitions/producers/`."""
