"""Recovery of one log after any stop: facts about its files, a decision table, and the actions."""
