"""Unit tests of `jepsen_like/workloads/`."""
