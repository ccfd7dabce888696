"""The truth about simulated clusters: invariants and what they are judged by."""
