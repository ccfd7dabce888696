"""The broker's port for scrubbing: checking the replicas on its disk.

`raftlog/broker/service.py` implements it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from raftlog.api.scrubs import Scrub
from raftlog.model import TopicPartition


class ScrubService(Protocol):
    """This node's own replicas."""

    def scrub_now(self, wanted: Collection[TopicPartition]) -> None:
        """Schedule a scrub of these partitions, as far as they are in service here; adds to one in progress."""

    def progress(self) -> Scrub: ...
