"""The truth about simulated clusters: invariants, and the knowledge against which they are checked."""
