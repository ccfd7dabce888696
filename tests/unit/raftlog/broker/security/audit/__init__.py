"""Unit tests of `raftlog/broker/security/audit/`."""
