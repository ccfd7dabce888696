"""Unit tests of `raftlog/client/cluster/`."""
