"""Unit tests of `metadata/raft/`."""
