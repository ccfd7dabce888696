"""Users, tokens and access rules in the world of the quorum."""
