"""Consuming: fetch channels, readers, the consumer."""
