"""Unit tests of `tests/`."""
