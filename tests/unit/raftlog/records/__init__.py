"""Unit tests of `raftlog/records/`."""
