"""The commands of `raftlog`, one file for each group."""
