"""Unit tests of `jepsen_like/nemeses/`."""
