"""Consumer groups: membership, assignment, reading and offset commits."""
