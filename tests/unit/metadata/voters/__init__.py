"""Unit tests of `metadata/voters/`."""
