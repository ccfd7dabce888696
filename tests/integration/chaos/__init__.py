"""Integration tests of `chaos/`."""
