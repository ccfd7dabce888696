"""Unit tests of `partitions/compaction/`."""
