"""Unit tests of `raftlog/broker/security/access/`."""
