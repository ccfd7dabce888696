"""Property tests of `metadata/`."""
