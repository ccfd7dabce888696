"""The encoding and decoding of the image's snapshots."""
