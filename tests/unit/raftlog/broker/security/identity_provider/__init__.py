"""Unit tests of `raftlog/broker/security/identity_provider/`."""
