"""Clusters of real processes that can be broken: layouts, what this machine can do, and what is left when they end."""
