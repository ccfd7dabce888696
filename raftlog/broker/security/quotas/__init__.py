"""The rates and counts of callers, and their limits."""
