"""Integration tests of `cluster/`."""
