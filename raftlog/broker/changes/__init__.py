"""Changes that a broker proposes to the quorum, for a client, for an operator or on its own."""
