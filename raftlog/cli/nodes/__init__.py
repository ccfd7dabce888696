"""Local nodes: `raftlog dev`, and certificates."""
