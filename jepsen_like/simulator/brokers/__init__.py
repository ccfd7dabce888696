"""Simulated brokers."""
