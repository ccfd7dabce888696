"""Recovery of one log after a crash: from the bytes in its folder to a decision, and the decision's actions."""
