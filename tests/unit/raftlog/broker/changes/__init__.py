"""Unit tests of `raftlog/broker/changes/`."""
