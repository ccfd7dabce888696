"""Kept results of seeds and runs, and the scoreboard over them."""
