"""Unit tests of `raftlog/client/producing/`."""
