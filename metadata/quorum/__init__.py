"""The quorum node: proposals, questions, links to its peers, the state machine's driver."""
