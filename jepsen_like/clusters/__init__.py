"""Clusters of real processes for fault injection: the two layouts, the machine's capabilities, and cleaning up."""
