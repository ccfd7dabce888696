"""The records of the metadata image, and the events of their changes."""
