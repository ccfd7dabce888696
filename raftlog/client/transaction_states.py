"""Where a transaction stands, as far as its producer knows: a name for each, and nothing of how it gets there
(`transaction.py`).
"""

from __future__ import annotations

import enum


class TransactionState(enum.Enum):
    """Where a transaction stands, as far as its producer knows."""

    NEW = "new"
    """Not begun."""
    OPEN = "open"
    PREPARED = "prepared"
    """It sends no more; whoever has its output decides."""
    ENDING = "ending"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    """No answer came in time, or the producer was replaced."""
