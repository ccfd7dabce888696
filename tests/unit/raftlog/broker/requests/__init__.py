"""Unit tests of `raftlog/broker/requests/`."""
