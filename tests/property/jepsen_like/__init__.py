"""Property tests of `jepsen_like/`."""
