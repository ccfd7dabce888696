"""Simulated clusters of whole brokers."""
