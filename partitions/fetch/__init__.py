"""Fetch requests of consumers: long polls, sessions, offset lookups, and the confirmation of doubtful answers."""
