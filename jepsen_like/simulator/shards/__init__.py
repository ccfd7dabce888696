"""Long ranges of seeds: running, keeping, comparing, shrinking."""
