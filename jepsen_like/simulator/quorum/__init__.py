"""Simulated metadata quorums."""
