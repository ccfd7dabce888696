"""HTTP consumers for the API: a request goes to the consumer's owner, or makes this node the owner if that is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from http_api.service.instances import Lease, LentPartition
from metadata.commands.groups import pack_partitions
from metadata.commands.instances import InstanceChange, PutInstance, RemoveInstance, SubscribeInstance
from metadata.view import ClusterView, InstanceRecord, InstanceSettings
from raftlog.broker.changes.groups import Groups
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError
from raftlog.model import BrokerId, Incarnation, Offset, TopicId, TopicPartition
from raftlog.ports import Clock
from raftlog.system.futures import future_of

from .links import OwnerLinks
from .messages import Answer, Ask, Lend, Seek, SeekTo, Settle
from .owner import PATIENCE_SECONDS, InstanceOwner, has_owner
from .positions import Delivered

T = TypeVar("T")

PATIENCE_FOR_OWNER_SECONDS = 4.0
"""Time in which a request looks for the owner again: a broker that died is fenced within a second."""
PAUSE_SECONDS = 0.1
_TRANSIENT = frozenset({"instance_moved", "connection_lost", "stale_incarnation"})


class HttpInstances:
    """The implementation of `http_api.service.instances.InstanceService`. All calls are made on the broker's loop."""

    def __init__(
        self,
        node_id: BrokerId,
        view: ClusterView,
        groups: Groups,
        owner: InstanceOwner,
        links: OwnerLinks,
        incarnation: Callable[[], Incarnation],
        catch_up: Callable[[], Awaitable[bool]],
        clock: Clock,
    ) -> None:
        self._node_id = node_id
        self._view = view
        self._groups = groups
        self._owner = owner
        self._links = links
        self._incarnation = incarnation
        self._catch_up = catch_up
        self._clock = clock

    async def create(self, group_id: str, name: str, settings: InstanceSettings, principal: str) -> InstanceRecord:
        await self._refresh(group_id, name)
        known = self._view.instances.instance(group_id, name)
        change = PutInstance(
            group_id,
            name,
            settings.embedded,  # type: ignore[arg-type]
            settings.offset_reset,  # type: ignore[arg-type]
            settings.auto_commit,
            settings.min_bytes,
            settings.wait_ms,
            -1 if known is None else known.epoch,
            self._node_id,
            self._incarnation(),
            self._clock.wall_ms(),
        )
        await self._change(change, principal)
        return self._known(group_id, name)

    async def find(self, group_id: str, name: str) -> InstanceRecord:
        if self._view.instances.instance(group_id, name) is None:
            await self._refresh(group_id, name)
        return self._known(group_id, name)

    async def subscribe(
        self,
        group_id: str,
        name: str,
        *,
        topics: Sequence[str] = (),
        pattern: str = "",
        partitions: Sequence[TopicPartition] = (),
    ) -> InstanceRecord:
        async def attempt() -> None:
            record = await self.find(group_id, name)
            packed, now_ms = pack_partitions(partitions), self._clock.wall_ms()
            change = SubscribeInstance(group_id, name, record.epoch, tuple(topics), pattern, packed, now_ms)
            await self._change(change, record.principal)

        await self._patiently(attempt, group_id, name)
        return self._known(group_id, name)

    async def remove(self, group_id: str, name: str) -> None:
        async def attempt() -> None:
            record = await self.find(group_id, name)
            await self._change(RemoveInstance(group_id, name, record.epoch, self._clock.wall_ms()), record.principal)

        await self._patiently(attempt, group_id, name)

    async def lend(self, group_id: str, name: str, wait_ms: int) -> Lease:
        async def attempt() -> Lease:
            record = await self._owned_record(group_id, name)
            answer = await self._ask(record, Lend(0, group_id, name, record.epoch, wait_ms), PATIENCE_SECONDS)
            partitions = [
                LentPartition(
                    TopicPartition(TopicId(one.topic_id), one.partition), one.granted, Offset(one.offset), one.delivered
                )
                for one in answer.positions
            ]
            return Lease(record, answer.lease, partitions, record.subscribes and not partitions)

        return await self._patiently(attempt, group_id, name)

    async def settle(self, lease: Lease, delivered: Mapping[TopicPartition, Offset]) -> None:
        record = lease.record
        ranges = tuple(
            Delivered(
                one.partition.topic_id, one.partition.partition, one.granted, one.offset, delivered[one.partition]
            )
            for one in lease.partitions
            if one.partition in delivered
        )
        question = Settle(0, record.group_id, record.name, record.epoch, lease.number, ranges)
        await self._ask(record, question, 0.0)

    async def seek(
        self, group_id: str, name: str, offsets: Mapping[TopicPartition, Offset], *, expected: Lease | None = None
    ) -> None:
        before = {} if expected is None else {one.partition: one.offset for one in expected.partitions}

        async def attempt() -> None:
            record = await self._owned_record(group_id, name)
            wanted = tuple(
                SeekTo(tp.topic_id, tp.partition, offset, before.get(tp, -1)) for tp, offset in offsets.items()
            )
            await self._ask(record, Seek(0, group_id, name, record.epoch, wanted), 0.0)

        await self._patiently(attempt, group_id, name)

    # --- The owner ---------------------------------------------------------------------------------------------------

    async def _owned_record(self, group_id: str, name: str) -> InstanceRecord:
        """Return a consumer whose owner is alive; if its owner is gone, this node becomes it."""
        record = await self.find(group_id, name)
        if has_owner(self._view, record):
            return record
        await self._owner.claim(record)
        return self._known(group_id, name)

    async def _ask(self, record: InstanceRecord, question: Ask, wait_s: float) -> Answer:
        if record.owner == self._node_id:
            return await self._owner.serve(question)
        return await self._links.ask(record.owner, question, wait_s)

    async def _patiently(self, attempt: Callable[[], Awaitable[T]], group_id: str, name: str) -> T:
        """Attempt something again while the consumer moves from owner to owner."""
        ends = self._clock.monotonic() + PATIENCE_FOR_OWNER_SECONDS
        while True:
            try:
                return await attempt()
            except RaftlogError as error:
                if error.code not in _TRANSIENT or self._clock.monotonic() >= ends:
                    raise
            await asyncio.sleep(PAUSE_SECONDS)
            await self._refresh(group_id, name)

    async def _change(self, change: InstanceChange, principal: str) -> None:
        await future_of(partial(self._groups.change_instance, change, principal=principal))

    async def _refresh(self, group_id: str, name: str) -> None:
        if not await self._catch_up():
            raise RetriableError("quorum_unavailable", f"consumer {name!r} is not known here, and the quorum is silent")

    def _known(self, group_id: str, name: str) -> InstanceRecord:
        record = self._view.instances.instance(group_id, name)
        if record is None:
            raise InvalidRequest("unknown_instance", f"group {group_id!r} has no HTTP consumer {name!r}")
        return record
