"""The process of a node: start, stop, scheduling and limits."""
