"""Karapace's own tests of its REST proxy, against Raftlog."""
