"""The broker's port for scrubbing: checking the replicas on its disk.

`raftlog/broker/service.py` implements it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from raftlog.model import TopicPartition


@dataclass(frozen=True, slots=True)
class ScrubProgress:
    """The progress of the scrub that was requested last."""

    running: bool
    replicas: int
    replicas_done: int
    total_bytes: int
    bytes_read: int
    findings: Sequence[tuple[TopicPartition, str]]
    """The partition of each finding, and its text: file, byte, what is wrong."""


class ScrubService(Protocol):
    """This node's own replicas."""

    def scrub_now(self, wanted: Collection[TopicPartition]) -> None:
        """Schedule a scrub of these partitions, as far as they are in service here; adds to one in progress."""
        ...

    def scrub_progress(self) -> ScrubProgress: ...
