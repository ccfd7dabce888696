"""Integration tests of `http_api/`."""
