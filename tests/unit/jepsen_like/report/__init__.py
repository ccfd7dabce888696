"""Unit tests of `jepsen_like/report/`."""
