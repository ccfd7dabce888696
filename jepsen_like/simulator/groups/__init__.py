"""Simulated quorums with a consumer group."""
