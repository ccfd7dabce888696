"""The thread that runs the quorum node, its connections, and its bridge to the broker's event loop."""
