"""The controller: proposals that the leader of the quorum makes on its own."""
