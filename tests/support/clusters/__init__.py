"""Clusters of real processes, their load, their faults and their checks."""
