"""Unit tests of `metadata/snapshot/`."""
