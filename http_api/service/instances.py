"""The broker's port for HTTP consumers. `raftlog/broker/instances/instances.py` implements it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from metadata.view import InstanceRecord, InstanceSettings
from raftlog.model import Offset, TopicPartition


class LentPartition(msgspec.Struct, frozen=True):
    """One partition of a lease."""

    partition: TopicPartition
    granted: int
    offset: Offset
    """The first offset to read."""
    delivered: bool
    """Whether anything was delivered since the consumer got the partition: then an empty commit commits `offset`."""


class Lease(msgspec.Struct, frozen=True):
    """A consumer's positions, held for one request. It must be settled, also if nothing was delivered."""

    record: InstanceRecord
    number: int
    partitions: Sequence[LentPartition]
    waits_for_partitions: bool
    """Whether the consumer has no partitions, but may get some soon: its group is being balanced."""


class InstanceService(Protocol):
    """HTTP consumers: any node takes any request. Whatever node owns a consumer keeps its positions; if that node is
    gone, another takes the consumer over, at the committed offsets.

    Each call raises `InvalidRequest` (`unknown_instance`) if there is no such consumer, as the quorum knows it (S7), or
    `RetriableError`.
    """

    async def create(self, group_id: str, name: str, settings: InstanceSettings, principal: str) -> InstanceRecord:
        """Create a consumer, in the place of one of this name."""
        ...

    async def find(self, group_id: str, name: str) -> InstanceRecord:
        """Return a consumer."""
        ...

    async def subscribe(
        self,
        group_id: str,
        name: str,
        *,
        topics: Sequence[str] = (),
        pattern: str = "",
        partitions: Sequence[TopicPartition] = (),
    ) -> InstanceRecord:
        """Replace the subscription: topics and a pattern, or partitions, or nothing."""
        ...

    async def remove(self, group_id: str, name: str) -> None:
        """Remove a consumer."""
        ...

    async def lend(self, group_id: str, name: str, wait_ms: int) -> Lease:
        """Hold the positions, for a read that takes `wait_ms` at most. Waits briefly for the request that holds them;
        `RetriableError` (`overloaded`) if it does not end."""
        ...

    async def settle(self, lease: Lease, delivered: Mapping[TopicPartition, Offset]) -> None:
        """End a lease. `delivered`: the partitions of which the client has certainly got everything from the lease's
        offset up to this one."""
        ...

    async def seek(
        self, group_id: str, name: str, offsets: Mapping[TopicPartition, Offset], *, expected: Lease | None = None
    ) -> None:
        """Move positions; with `expected` only those that are still the lease's. Raises `InvalidRequest`
        (`stale_generation`) for a partition that the consumer does not have."""
        ...
