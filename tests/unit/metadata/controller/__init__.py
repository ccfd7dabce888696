"""Unit tests of `metadata/controller/`."""
