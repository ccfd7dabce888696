"""Unit tests of `raftlog/broker/security/quotas/`."""
