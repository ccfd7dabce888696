"""Simulated quorums."""
