"""Property tests of `partitions/`."""
