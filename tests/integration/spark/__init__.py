"""Integration tests of `spark/`."""
