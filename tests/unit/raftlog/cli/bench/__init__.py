"""Unit tests of `raftlog/cli/bench/`."""
