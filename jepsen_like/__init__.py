"""The fault suite: histories, checkers, nemeses, simulated worlds, and runs of real clusters."""
