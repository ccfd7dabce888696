"""Unit tests of `raftlog/broker/security/administration/`."""
