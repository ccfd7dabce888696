"""Unit tests of `raftlog/client/blocking/`."""
