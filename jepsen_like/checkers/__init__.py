"""Checkers: a history goes in, a verdict comes out. See `../README.md`."""
