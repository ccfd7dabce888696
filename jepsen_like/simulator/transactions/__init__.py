"""Simulated clusters with transactional clients."""
