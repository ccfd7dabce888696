"""Access to the cluster: connections, metadata cache, JSON calls."""
