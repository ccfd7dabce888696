"""The audit trail of a node, and its destinations."""
