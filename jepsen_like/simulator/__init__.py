"""Simulated worlds: a whole cluster in one thread on virtual time, with the product's cores and shells on simulated
ports.
"""
