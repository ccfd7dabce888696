"""The consumer of one topic: positions, fetches ahead of the program, and the records handed out."""
