"""Security of a node: authentication of callers, and the audit log."""
