"""Nemeses: faults that are drawn from a seed, injected into a cluster, proved to have had an effect, and healed."""
