"""Snapshots of the image: encoding and decoding."""
