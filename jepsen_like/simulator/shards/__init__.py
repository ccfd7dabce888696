"""Long ranges of seeds: running, keeping, comparing and shrinking them."""
