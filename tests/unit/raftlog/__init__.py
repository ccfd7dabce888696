"""Unit tests of `raftlog/`."""
