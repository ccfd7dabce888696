"""Integration tests of `client/`."""
