"""What the HTTP API asks of the broker about checking what lies on its disk.

`raftlog/broker/service.py` is the real one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from raftlog.model import TopicPartition


@dataclass(frozen=True, slots=True)
class ScrubProgress:
    """How far the check that was asked for last is."""

    running: bool
    replicas: int
    replicas_done: int
    total_bytes: int
    bytes_read: int
    findings: Sequence[tuple[TopicPartition, str]]
    """Whose, and what: file, byte, what is wrong."""


class ScrubService(Protocol):
    """This node's own replicas."""

    def scrub_now(self, wanted: Collection[TopicPartition]) -> None:
        """Check these soon, as far as they are in service here; adds to a check that is under way."""
        ...

    def scrub_progress(self) -> ScrubProgress: ...
