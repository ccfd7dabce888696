"""Unit tests of `raftlog/broker/node/`."""
