"""Samples of a cluster for `raftlog top`."""
