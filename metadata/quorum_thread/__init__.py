"""The thread that runs the quorum node, and its bridge to the event loop."""
