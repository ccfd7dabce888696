"""Reads the numbers of a running node for monitoring."""
