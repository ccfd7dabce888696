"""Property tests of `raftlog/`."""
