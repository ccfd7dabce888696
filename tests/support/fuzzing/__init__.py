"""Mutated captures of valid conversations, sent to the ports of running nodes."""
