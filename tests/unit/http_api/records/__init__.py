"""Unit tests of `http_api/records/`."""
