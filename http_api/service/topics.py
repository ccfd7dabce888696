"""The broker's port for topics. `raftlog/broker/changes/topics.py` implements it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from raftlog.model import TopicId


class TopicService(Protocol):
    """Creation, alteration and deletion of topics."""

    async def create(
        self, name: str, partition_count: int, replication_factor: int | None, configs: Mapping[str, str]
    ) -> None:
        """Create a topic. Returns when this node's view shows it with elected leaders, or two seconds after the
        decision.

        Raises `InvalidRequest` (`topic_exists`, `invalid_config`, `invalid_topic_name`, `invalid_request`) or
        `RetriableError`.
        """

    async def restore(
        self,
        name: str,
        partition_count: int,
        replication_factor: int | None,
        configs: Mapping[str, str],
        producer_ids_below: int,
    ) -> None:
        """Create a topic that takes batches from a backup until its setting `restoring` is removed.

        `producer_ids_below` is greater than all producer ids in the batches. Raises as `create`.
        """

    async def delete(self, name: str, meant: TopicId | None = None) -> None:
        """Delete the topic of this name; if `meant` is given, only the topic with that id. Raises `InvalidRequest`
        (`unknown_topic`) or `RetriableError`."""

    async def alter(self, name: str, assign: Mapping[str, str], remove: Sequence[str]) -> None:
        """Set some settings and reset others to their defaults."""

    async def add_partitions(self, name: str, partition_count: int) -> None:
        """Grow the topic to `partition_count` partitions; a smaller number than the present one is refused."""
