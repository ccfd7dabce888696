"""Unit tests of `raftlog/client/consuming/`."""
