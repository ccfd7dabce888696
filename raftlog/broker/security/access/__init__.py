"""The decisions about requests at this node."""
