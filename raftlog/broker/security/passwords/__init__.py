"""Passwords: their stored form, SCRAM, and the checks of a node."""
