"""The broker's port for the audit log. `raftlog/broker/security/audit/recent.py` implements it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class AuditService(Protocol):
    """The newest lines of this node's audit log."""

    @property
    def level(self) -> str:
        """The events that are recorded (`refused`, `changes`, `all`); empty if this node writes no audit log."""
        ...

    def recent(self, most: int) -> Sequence[bytes]:
        """Return the newest lines as JSON, the newest first. Each is an `AuditLine`."""
        ...
