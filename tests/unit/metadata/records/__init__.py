"""Unit tests of `metadata/records/`."""
