"""Unit tests of `metadata/image/`."""
