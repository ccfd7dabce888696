"""Integration tests of `http2/`."""
