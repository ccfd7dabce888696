"""Unit tests of `http_api/streams/`."""
