"""The exception that every checker of the simulator raises."""

from __future__ import annotations


class Violation(AssertionError):
    """A safety property does not hold, or progress was not made. The text begins with the property's name."""
