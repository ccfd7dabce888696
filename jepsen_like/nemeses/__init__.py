"""Nemeses: what breaks clusters, drawn from a seed, proved to have bitten, and healed."""
