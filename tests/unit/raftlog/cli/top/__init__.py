"""Unit tests of `raftlog/cli/`."""
