"""Unit tests of `raftlog/client/transactions/`."""
