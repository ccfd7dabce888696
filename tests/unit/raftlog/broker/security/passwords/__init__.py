"""Unit tests of `raftlog/broker/security/passwords/`."""
