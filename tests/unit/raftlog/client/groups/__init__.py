"""Unit tests of `raftlog/client/groups/`."""
