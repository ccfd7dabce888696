"""Local nodes and their certificates."""
