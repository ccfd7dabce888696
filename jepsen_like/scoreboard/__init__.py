"""Results that are kept: seeds, runs, and the scoreboard over them."""
