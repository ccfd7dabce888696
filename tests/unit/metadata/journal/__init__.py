"""Unit tests of `metadata/journal/`."""
