"""The command line of raftlog."""
