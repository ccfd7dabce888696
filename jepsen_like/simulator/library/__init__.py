"""Simulated clusters with the client library on virtual time."""
