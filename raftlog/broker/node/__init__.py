"""The process of a node: its start, its stop, its scheduling and limits."""
