"""Consumer groups: membership, assignment, reading, commits."""
