"""Unit tests of `raftlog/client/`."""
