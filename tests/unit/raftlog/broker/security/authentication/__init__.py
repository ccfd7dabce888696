"""Unit tests of `raftlog/broker/security/authentication/`."""
