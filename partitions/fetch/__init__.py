"""Fetch requests: sessions, long polls, offset lookups."""
