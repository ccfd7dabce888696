"""The quorum node: proposals, questions to the leader, links to its peers, and the driver of the state machine."""
