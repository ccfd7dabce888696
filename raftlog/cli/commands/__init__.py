"""The commands of `raftlog`, one module for each group."""
