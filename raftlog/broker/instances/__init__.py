"""HTTP consumer instances: their owner on this node, and the way to it from every node."""
