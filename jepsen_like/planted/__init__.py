"""Planted bugs, each a patch outside the product, for measuring what the suite can find."""
