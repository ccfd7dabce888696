"""Unit tests of `jepsen_like/clusters/`."""
