"""Unit tests of `raftlog/system/`."""
