"""Unit tests of `metadata/rules/`."""
