"""The client of `topic-lives`: a producer, a member of a group and an administrator of topics, in one program.

A life is one topic id of a name. The producer and the member use names alone, as applications do; the administrator
deletes the topic that it has seen (`topic_id`), so that a late deletion does not affect a later topic of the name.

A record does not say from which life it is: the member's positions before and after the poll do. Two lives of a name
may be assigned for a while; a record that both could have delivered is reported for both, as `unclear`.

A commit covers the positions of records that an earlier answer has reported, and nothing is committed otherwise. So the
records of a lost answer are never committed by this client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from raftlog.api.topics import TopicDescription
from raftlog.client import Admin, Consumer, ConsumerRecord, GroupConsumer, GroupPartition, Producer
from raftlog.client.cluster.api import HttpApi
from raftlog.client.groups.api import GroupApi
from raftlog.errors import InvalidRequest, RaftlogError

from .log import encoded
from .members import subscribed
from .messages import CertainlyNot, OutcomeUnknown, Told
from .process import ClientSettings

POLL_SECONDS = 0.1
POLL_RECORDS = 50
LOOK_EVERY = 0.1
SEND_PART = 0.5
REPLICAS_MAX = 3
SETTLED_PART = 0.5
"""Parts of an operation's time: for a record, and for all nodes to report the same of a topic."""

Place = tuple[str, str, int]
"""Name, topic id, partition."""
Handed = dict[Place, list[list[int]]]
"""Place → offset and value of each record."""


class TopicLivesClient:
    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._bootstrap = list(settings.bootstrap)
        self._names = sorted(settings.options["topics"])
        self._group = f"group-{settings.options['tag']}"
        self._admin = Admin(self._bootstrap)
        self._api = HttpApi(self._bootstrap)
        self._offsets = GroupApi(self._api, self._group)
        self._producer: Producer | None = None
        self._member: GroupConsumer | None = None
        self._before: dict[GroupPartition, int] = {}
        """The member's positions after the last poll, or their start if assigned since."""

    async def invoke(self, f: str, value: Any, hint: Mapping[str, Any]) -> Told:
        match f:
            case "send":
                return await self._send(*value)
            case "poll":
                return await self._poll()
            case "commit":
                return await self._commit()
            case "read":
                return Told("ok", await self._read())
            case "leave":
                await self._leave()
                return Told("ok")
            case "create":
                return Told("ok", await self._create(*value))
            case "delete":
                return Told("ok", await self._delete(value[0]))
            case "settle":
                return Told("ok", await self._settle(*value))
            case "dump":
                return Told("ok", await self._dump(value[0]))
        raise ValueError(f"topic-lives has no operation {f}")

    async def close(self) -> None:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._api.close)
            stack.push_async_callback(self._admin.close)
            if self._producer is not None:
                stack.push_async_callback(self._producer.close, flush=False)
            if self._member is not None:
                stack.push_async_callback(self._member.close, processed=False)

    # --- Records ------------------------------------------------------------------------------------------------------

    async def _send(self, name: str, value: int) -> Told:
        """Send to the partition of the value's key, among those that the producer knows."""
        if self._producer is None:
            # A record for a partition that the next life does not have waits for this long.
            patience = self._settings.timeout * SEND_PART * 1000
            self._producer = Producer(
                self._bootstrap, linger_ms=1, delivery_timeout_ms=patience, request_timeout_ms=patience
            )
        text = encoded(value)
        done = await self._producer.send_and_wait(name, text, key=text)
        return Told("ok", [name, value, done.partition, done.offset])

    async def _poll(self) -> Told:
        member = self._member or self._subscribed()
        self._member = member
        try:
            records = await member.poll(POLL_RECORDS, timeout=POLL_SECONDS)
        except RaftlogError as error:
            self._before = dict(member.positions)
            return Told("fail", error=str(error))
        before, self._before = self._before, dict(member.positions)
        handed, unclear, unknown = by_life(records, before, self._before)
        told = {"records": listed(handed), "unclear": listed(unclear), "unknown": unknown}
        return Told("ok", {**told, "owned": [[one.topic, one.topic_id, one.partition] for one in member.assignment]})

    def _subscribed(self) -> GroupConsumer:
        self._before = {}
        return subscribed(
            self._bootstrap,
            self._group,
            self._names,
            enable_auto_commit=False,
            on_assigned=self._on_assigned,
            on_gone=self._on_gone,
        )

    async def _commit(self) -> Told:
        """Commit all positions. An error does not say which part was committed, so the outcome is unknown."""
        member = self._member
        positions = dict(member.positions) if member is not None else {}
        if member is None or not positions:
            raise CertainlyNot("the member owns no partition")
        try:
            await member.commit(positions, timeout=self._settings.timeout / 2)
        except InvalidRequest as error:
            raise CertainlyNot(str(error)) from None
        except RaftlogError as error:
            raise OutcomeUnknown(str(error)) from None
        return Told("ok", offsets_of(positions))

    async def _read(self) -> list[list[Any]]:
        """Return the group's committed offsets, read through the quorum's log (S7)."""
        try:
            told = await self._offsets.committed(timeout=self._settings.timeout / 2)
        except RaftlogError as error:
            if error.code == "unknown_group":
                return []
            raise CertainlyNot(str(error)) from None
        return offsets_of({one.group_partition: one.offset for one in told if one.offset is not None})

    async def _leave(self) -> None:
        member, self._member = self._member, None
        if member is not None:
            await member.close(processed=False)

    def _on_assigned(self, partitions: Iterable[GroupPartition]) -> None:
        assert self._member is not None
        positions = self._member.positions
        self._before.update({one: positions[one] for one in partitions})

    def _on_gone(self, partitions: Iterable[GroupPartition]) -> None:
        for one in partitions:
            self._before.pop(one, None)

    # --- Topics -------------------------------------------------------------------------------------------------------

    async def _create(self, name: str, partitions: int) -> list[Any]:
        """Create the topic, unless it exists: return name, partitions, topic id, and whether this operation
        created it.
        """
        factor = int(self._settings.options.get("replication_factor", min(REPLICAS_MAX, len(self._bootstrap))))
        try:
            made = await self._admin.create_topic(name, partitions, factor)
        except InvalidRequest as error:
            if error.code != "topic_exists":
                raise
            there = await self._described(self._admin, name)
            return [name, there.partition_count, there.id, False]
        return [name, made.partition_count, made.id, True]

    async def _delete(self, name: str) -> list[Any]:
        topic_id = (await self._described(self._admin, name)).id
        await self._admin.delete_topic(name, topic_id=topic_id)
        return [name, topic_id]

    async def _settle(self, name: str, partitions: int) -> list[Any]:
        """Wait until the topic, created if necessary, is described equally by every node."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.timeout * SETTLED_PART
        made = await self._create(name, partitions)
        while loop.time() < deadline:
            told = await asyncio.gather(*(self._told_by(node, name) for node in self._bootstrap))
            first = told[0]
            if first is not None and all(one == first for one in told) and _in_sync(first):
                return [name, first.partition_count, first.id]
            await asyncio.sleep(LOOK_EVERY)
        raise CertainlyNot(f"the nodes do not report the same state of topic {name} ({made[2]})")

    async def _told_by(self, node: str, name: str) -> TopicDescription | None:
        try:
            async with Admin([node]) as admin:
                return await admin.describe_topic(name)
        except RaftlogError:
            return None

    async def _dump(self, name: str) -> list[Any]:
        """Return name, topic id, and for each partition the offset and value of every record, read without a group."""
        there = await self._described(self._admin, name)
        numbers = range(there.partition_count)
        found: dict[int, list[list[int]]] = {number: [] for number in numbers}
        try:
            ends = [(await self._admin.offsets(name, one, topic_id=there.id)).latest for one in numbers]
            async with Consumer(self._bootstrap, name, max_wait_ms=100, topic_id=there.id) as reader:
                while any(reader.positions.get(one, -1) < end for one, end in enumerate(ends)):
                    for record in await reader.poll(2000, timeout=POLL_SECONDS):
                        found[record.partition].append([record.offset, _value(record)])
                    await asyncio.sleep(0)
        except RaftlogError as error:
            raise CertainlyNot(str(error)) from None
        return [name, there.id, [found[one] for one in numbers]]

    async def _described(self, admin: Admin, name: str) -> TopicDescription:
        """Describe the topic; a failure certainly had no effect."""
        try:
            return await admin.describe_topic(name)
        except RaftlogError as error:
            raise CertainlyNot(str(error)) from None


def by_life(
    records: Sequence[ConsumerRecord], before: Mapping[GroupPartition, int], after: Mapping[GroupPartition, int]
) -> tuple[Handed, Handed, list[list[Any]]]:
    """Sort records by the life whose positions moved over them.

    Returns those of one life; those that two lives may have delivered, listed for both; and those of no life.
    """
    handed: Handed = {}
    unclear: Handed = {}
    unknown: list[list[Any]] = []
    for record in records:
        lives = [
            one
            for one, end in after.items()
            if (one.topic, one.partition) == (record.topic, record.partition)
            and before.get(one, 0) <= record.offset < end
        ]
        if not lives:
            unknown.append([record.topic, record.partition, record.offset, _value(record)])
        for one in lives:
            where = handed if len(lives) == 1 else unclear
            place = (one.topic, one.topic_id, one.partition)
            where.setdefault(place, []).append([record.offset, _value(record)])
    return handed, unclear, unknown


def listed(handed: Handed) -> list[list[Any]]:
    """Return the JSON form: name, topic id, partition, records."""
    return [[*place, pairs] for place, pairs in sorted(handed.items())]


def offsets_of(offsets: Mapping[GroupPartition, int]) -> list[list[Any]]:
    """Return name, topic id, partition and offset of each."""
    return [[one.topic, one.topic_id, one.partition, offset] for one, offset in sorted(offsets.items())]


def _in_sync(topic: TopicDescription) -> bool:
    return all(one.leader is not None and sorted(one.isr) == sorted(one.replicas) for one in topic.partitions)


def _value(record: ConsumerRecord) -> int:
    return int(record.value or b"-1")
