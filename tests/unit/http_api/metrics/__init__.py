"""Tests of `http_api/metrics`."""
