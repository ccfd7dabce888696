"""The load on simulated clusters: producers and consumers."""
