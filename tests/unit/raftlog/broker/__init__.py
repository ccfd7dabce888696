"""Unit tests of `raftlog/broker/`."""
