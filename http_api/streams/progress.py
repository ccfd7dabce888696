"""Whether the reader of a stream is still there: its TCP must acknowledge something, as long as something waits.

Pure.
"""

from __future__ import annotations


class ReaderProgress:
    """The acknowledgements of one reader, in bytes."""

    def __init__(self, patience_s: float, now: float) -> None:
        self._patience_s = patience_s
        self._acknowledged = 0
        self._since = now

    def is_stalled(self, now: float, written: int, waiting: int) -> bool:
        """Return whether nothing was acknowledged for the whole patience although something waited. `written`: bytes
        since the beginning; `waiting`: those in the transport and its socket that are not acknowledged."""
        acknowledged = written - waiting
        if waiting == 0 or acknowledged > self._acknowledged:
            self._acknowledged, self._since = max(acknowledged, self._acknowledged), now
        return now - self._since >= self._patience_s
