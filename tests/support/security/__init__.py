"""Helpers for tests of credentials."""
