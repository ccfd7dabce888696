"""What the HTTP API asks of the broker about topics. `raftlog/broker/changes/topics.py` is the real one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from raftlog.model import TopicId


class TopicService(Protocol):
    """Topics are made, changed and deleted."""

    async def create(
        self, name: str, partition_count: int, replication_factor: int | None, configs: Mapping[str, str]
    ) -> None:
        """Returns when the topic is decided and this node's view shows it with leaders elected (or two seconds passed).

        Raises `InvalidRequest` (`topic_exists`, `invalid_config`, `invalid_topic_name`, `invalid_request`) or
        `RetriableError`.
        """
        ...

    async def delete(self, name: str, meant: TopicId | None = None) -> None:
        """The topic `meant`, where that is given, and no other that has the name by now. Raises `InvalidRequest`
        (`unknown_topic`) or `RetriableError`."""
        ...

    async def alter(self, name: str, assign: Mapping[str, str], remove: Sequence[str]) -> None:
        """Set some settings and put others back to their defaults."""
        ...

    async def add_partitions(self, name: str, partition_count: int) -> None:
        """Grow to `partition_count` partitions; fewer than now is refused."""
        ...
