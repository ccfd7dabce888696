"""Unit tests of `metadata/quorum/`."""
