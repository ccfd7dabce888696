"""Unit tests of `metadata/`."""
