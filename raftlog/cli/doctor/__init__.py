"""The checks of `raftlog doctor`."""
