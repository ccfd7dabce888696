"""Reports of a backup or a restore while it runs."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """A listener. Calls are made on the event loop and must not block for long."""

    def advance(self, size: int, records: int) -> None:
        """Add bytes and records that are done."""
        ...

    def warn(self, text: str) -> None:
        """Report something that the user must know, and that does not end the work."""
        ...
