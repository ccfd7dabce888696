"""Planted bugs: patches outside the product that measure what the suite can find."""
