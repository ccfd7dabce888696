"""The owner of HTTP consumers: their positions and memberships on this node.

Which consumers it owns, the view says: the quorum names a broker, its incarnation and an epoch. Everything here belongs
to one epoch. When the view shows another, it is dropped, and a consumer that is new here starts at the committed
offsets.

A consumer that is unused for `timeout_s` is removed. One whose owner is gone is adopted by the live broker with
the lowest id, so that it is used again or removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from http_api.service.service import PartitionService
from metadata.commands.instances import ClaimInstance, RemoveInstance
from metadata.view import (
    BrokerChanged,
    BrokerRemoved,
    ClusterView,
    GroupChanged,
    InstanceChanged,
    InstanceRecord,
    InstanceRemoved,
    MetadataEvent,
)
from raftlog.broker.changes.groups import Groups
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError, error_from_code
from raftlog.model import BrokerId, Incarnation, Offset, TopicId, TopicPartition
from raftlog.ports import Clock, Logger
from raftlog.system.futures import future_of
from raftlog.wire import (
    TIMESTAMP_EARLIEST,
    TIMESTAMP_LATEST,
    CommitOffsetsRequest,
    MemberHeartbeatRequest,
    OffsetQuery,
    OffsetsRequest,
    OffsetToCommit,
    ReleasedTopic,
)

from .messages import Answer, Ask, Lend, LentPosition, Seek, Settle
from .positions import Positions

HEARTBEAT_SECONDS = 2.0
LEASE_GRACE_SECONDS = 5.0
"""Time beyond a read's own wait after which its lease ends by itself, in seconds."""
PATIENCE_SECONDS = 5.0
"""Longest time that a request waits for the one that holds the positions."""
ADOPTION_SECONDS = 5.0
"""Time after which a consumer whose owner is gone is adopted, unless a request has made another node its owner."""
EARLIEST = "earliest"


class Owned:
    """One consumer that this node owns, in one epoch."""

    def __init__(self, record: InstanceRecord, now: float) -> None:
        self.record = record
        self.positions = Positions()
        self.used = now
        """The time of its last request, on the monotonic clock."""
        self.freed = asyncio.Event()
        """Set when no request holds the positions."""
        self.freed.set()
        self.lease_ends: asyncio.TimerHandle | None = None
        self.starting = asyncio.Lock()


class InstanceOwner:
    """The consumers of this node. All calls are made on the broker's loop. It must be closed."""

    def __init__(
        self,
        node_id: BrokerId,
        view: ClusterView,
        groups: Groups,
        partitions: PartitionService,
        incarnation: Callable[[], Incarnation],
        catch_up: Callable[[], Awaitable[bool]],
        clock: Clock,
        logger: Logger,
        *,
        timeout_s: float,
    ) -> None:
        """`partitions`: as this node itself may use them. `incarnation` returns this broker's."""
        self._node_id = node_id
        self._view = view
        self._groups = groups
        self._partitions = partitions
        self._incarnation = incarnation
        self._catch_up = catch_up
        self._clock = clock
        self._logger = logger
        self._timeout_s = timeout_s
        self._owned: dict[tuple[str, str], Owned] = {}
        self._orphaned_since: dict[tuple[str, str], float] = {}
        self._unsubscribe = view.subscribe(self._on_events)
        self._tasks: set[asyncio.Task[None]] = set()
        self._ticking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to send heartbeats and to look for consumers that expire or have lost their owner."""
        for record in self._view.instances.records():
            self._follow(record)
        self._ticking = asyncio.get_running_loop().create_task(self._tick())

    def close(self) -> None:
        """Stop. The consumers stay in the quorum, and other nodes take them over."""
        self._unsubscribe()
        for task in (*self._tasks, *([self._ticking] if self._ticking else [])):
            task.cancel()
        for owned in self._owned.values():
            if owned.lease_ends is not None:
                owned.lease_ends.cancel()

    # --- Requests ----------------------------------------------------------------------------------------------------

    async def serve(self, question: Ask) -> Answer:
        """Answer a question about a consumer. Raises `RetriableError` (`instance_moved`) if this node does not own it
        in that epoch."""
        match question:
            case Lend():
                return await self._lend(question)
            case Settle():
                owned = self._found(question)
                owned.positions.settle(question.lease, question.delivered)
                self._free(owned)
                return Answer(question.number)
            case Seek():
                self._seek(self._found(question), question)
                return Answer(question.number)

    async def _lend(self, question: Lend) -> Answer:
        owned = self._found(question)
        patience = asyncio.timeout(PATIENCE_SECONDS)
        try:
            async with patience:
                await self._prepare(owned)
                while owned.positions.is_lent:
                    owned.freed.clear()
                    await owned.freed.wait()
        except TimeoutError:
            raise RetriableError("overloaded", "another request of this consumer is in progress") from None
        owned = self._found(question)  # it may have moved while this waited
        owned.used = self._clock.monotonic()
        lease = owned.positions.lend()
        ends_s = question.wait_ms / 1000 + LEASE_GRACE_SECONDS
        owned.lease_ends = asyncio.get_running_loop().call_later(ends_s, self._expire, owned, lease)
        lent = tuple(
            LentPosition(tp.topic_id, tp.partition, one.granted, one.offset, one.delivered)
            for tp, one in sorted(owned.positions.present.items())
        )
        return Answer(question.number, lease=lease, positions=lent)

    def _seek(self, owned: Owned, question: Seek) -> None:
        present = owned.positions.present
        wanted = {TopicPartition(TopicId(one.topic_id), one.partition): one for one in question.positions}
        for partition in wanted:
            if partition not in present and partition not in owned.positions.missing:
                raise InvalidRequest("stale_generation", f"{partition} is not assigned to this consumer")
        for partition, one in wanted.items():
            owned.positions.seek(partition, one.offset, None if one.expected < 0 else one.expected)
        owned.used = self._clock.monotonic()

    def _found(self, question: Ask) -> Owned:
        owned = self._owned.get((question.group_id, question.name))
        if owned is None or owned.record.epoch != question.epoch:
            raise RetriableError("instance_moved", f"node {self._node_id} does not own {question.name!r} in that epoch")
        return owned

    def _expire(self, owned: Owned, lease: int) -> None:
        owned.positions.settle(lease, ())
        self._free(owned)

    def _free(self, owned: Owned) -> None:
        if not owned.positions.is_lent:
            if owned.lease_ends is not None:
                owned.lease_ends.cancel()
            owned.freed.set()

    # --- First positions ---------------------------------------------------------------------------------------------

    async def _prepare(self, owned: Owned) -> None:
        """Find the first positions of partitions that are new: the committed offsets, by a linearizable read (S8)."""
        async with owned.starting:
            missing = owned.positions.missing
            if not missing:
                return
            if not await self._catch_up():
                raise RetriableError("quorum_unavailable", "the committed offsets are not known: the quorum is silent")
            committed = self._view.groups.offsets(owned.record.group_id)
            unknown = {tp: granted for tp, granted in missing.items() if tp not in committed}
            for partition, granted in missing.items():
                if partition in committed:
                    owned.positions.start(partition, granted, committed[partition].offset)
            if unknown:
                await self._begin(owned, unknown)

    async def _begin(self, owned: Owned, unknown: Mapping[TopicPartition, int]) -> None:
        """Begin where the group has committed nothing. A beginning at the end is committed first: another owner would
        begin at a later end, and skip what came between."""
        is_earliest = owned.record.settings.offset_reset == EARLIEST
        time = TIMESTAMP_EARLIEST if is_earliest else TIMESTAMP_LATEST
        queries = [OffsetQuery(tp.topic_id, tp.partition, time) for tp in unknown]
        found = (await self._partitions.offsets(OffsetsRequest(0, queries, isolation=1))).partitions
        starts: dict[TopicPartition, int] = {}
        failed: RaftlogError | None = None
        for partition, one in zip(unknown, found, strict=True):
            if one.error:
                failed = error_from_code(one.error, one.detail, one.leader)
            else:
                starts[partition] = one.offset
        if not starts and failed is not None:
            raise failed
        if starts and not is_earliest:
            await future_of(partial(self._groups.commit, commit_of(self._view, owned.record, starts)))
        for partition, offset in starts.items():
            owned.positions.start(partition, unknown[partition], offset)

    # --- Following the view ------------------------------------------------------------------------------------------

    def _on_events(self, index: int, events: Sequence[MetadataEvent]) -> None:
        for event in events:
            match event:
                case InstanceChanged(record):
                    self._follow(record)
                case InstanceRemoved(group_id, name):
                    self._drop((group_id, name))
                case GroupChanged(group):
                    for name in self._view.instances.of_group(group.group_id):
                        owned = self._owned.get((group.group_id, name))
                        if owned is not None:
                            self._grant(owned)
                case BrokerChanged() | BrokerRemoved():
                    pass  # the next tick looks for orphans

    def _follow(self, record: InstanceRecord) -> None:
        """Own a consumer, or no longer, as its record says."""
        key = record.group_id, record.name
        mine = (record.owner, record.owner_incarnation) == (self._node_id, self._incarnation())
        known = self._owned.get(key)
        if not mine:
            self._drop(key)
        elif known is None or known.record.epoch != record.epoch:
            used = self._clock.monotonic()
            self._drop(key)
            self._owned[key] = Owned(record, used)
            self._grant(self._owned[key])
            self._do(partial(self._beat, self._owned[key]))
        else:
            known.record = record
            self._grant(known)

    def _drop(self, key: tuple[str, str]) -> None:
        owned = self._owned.pop(key, None)
        if owned is not None:
            if owned.lease_ends is not None:
                owned.lease_ends.cancel()
            owned.freed.set()

    def _grant(self, owned: Owned) -> None:
        """Take over the partitions that the view shows. A member that was removed has none."""
        record = owned.record
        if not record.subscribes:
            owned.positions.grant(dict.fromkeys(record.partitions, record.epoch))
            return
        group = self._view.groups.group(record.group_id)
        member = group.members.get(record.name) if group is not None else None
        if member is None or member.incarnation != record.epoch:
            owned.positions.grant({})
            return
        owned.positions.grant({partition: member.owned[partition] for partition in member.assigned})
        if member.revoking:
            self._do(partial(self._beat, owned))

    # --- Membership --------------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            now = self._clock.monotonic()
            for owned in list(self._owned.values()):
                if now - owned.used > self._timeout_s:
                    self._do(partial(self._remove, owned.record))
                else:
                    self._do(partial(self._beat, owned))
            self._adopt(now)

    async def _beat(self, owned: Owned) -> None:
        """Send a heartbeat, and release what the member must give up: nothing of it is delivered from here on."""
        record = owned.record
        if not record.subscribes or self._owned.get((record.group_id, record.name)) is not owned:
            return
        group = self._view.groups.group(record.group_id)
        member = group.members.get(record.name) if group is not None else None
        if member is None or member.incarnation != record.epoch:
            # The coordinator has removed it: join again, as a new epoch.
            await self.claim(record)
            return
        if record.settings.auto_commit:
            await self._commit_delivered(owned)
        by_topic: dict[TopicId, list[int]] = {}
        for partition in member.revoking:
            by_topic.setdefault(partition.topic_id, []).append(partition.partition)
        released = [ReleasedTopic(topic_id, numbers) for topic_id, numbers in by_topic.items()]
        beat = MemberHeartbeatRequest(0, record.group_id, record.name, record.epoch, member.generation, released)
        await future_of(partial(self._groups.heartbeat, beat))

    async def _commit_delivered(self, owned: Owned) -> None:
        committed = self._view.groups.offsets(owned.record.group_id)
        offsets = {
            partition: offset
            for partition, offset in owned.positions.delivered.items()
            if partition not in committed or committed[partition].offset < offset
        }
        if offsets:
            await future_of(partial(self._groups.commit, commit_of(self._view, owned.record, offsets)))

    async def claim(self, record: InstanceRecord) -> None:
        """Make this node the owner. Raises `RetriableError` (`instance_moved`) if another was faster."""
        change = ClaimInstance(record.group_id, record.name, record.epoch, self._node_id, self._incarnation())
        await future_of(partial(self._groups.change_instance, change, principal=record.principal))

    async def _remove(self, record: InstanceRecord) -> None:
        change = RemoveInstance(record.group_id, record.name, record.epoch, self._clock.wall_ms())
        await future_of(partial(self._groups.change_instance, change, principal=record.principal))

    def _adopt(self, now: float) -> None:
        """Take over the consumers whose owner has been gone for a while, if this is the broker to do so."""
        live = [broker.broker_id for broker in self._view.brokers() if not broker.fenced]
        if not live or live[0] != self._node_id:
            self._orphaned_since.clear()
            return
        orphans = {
            (record.group_id, record.name): record
            for record in self._view.instances.records()
            if not has_owner(self._view, record)
        }
        self._orphaned_since = {key: self._orphaned_since.get(key, now) for key in orphans}
        for key, record in orphans.items():
            if now - self._orphaned_since[key] > ADOPTION_SECONDS:
                self._do(partial(self.claim, record))

    def _do(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do something in the background; the next tick repeats what failed."""

        async def done() -> None:
            try:
                await work()
            except RaftlogError as error:
                self._logger.info("instance_upkeep_failed", error=str(error))

        task = asyncio.get_running_loop().create_task(done())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def has_owner(view: ClusterView, record: InstanceRecord) -> bool:
    """Return whether the owner of a consumer is alive."""
    broker = view.broker(record.owner)
    return broker is not None and not broker.fenced and broker.incarnation == record.owner_incarnation


def commit_of(
    view: ClusterView, record: InstanceRecord, offsets: Mapping[TopicPartition, Offset | int]
) -> CommitOffsetsRequest:
    """Return a consumer's commit, which is refused if the consumer has another epoch, or lost a partition (S8)."""
    group = view.groups.group(record.group_id)
    member = group.members.get(record.name) if group is not None and record.subscribes else None
    named = [OffsetToCommit(tp.topic_id, tp.partition, offset) for tp, offset in offsets.items()]
    if not record.subscribes:
        return CommitOffsetsRequest(0, record.group_id, "", 0, 0, named)
    generation = member.generation if member is not None else record.epoch
    return CommitOffsetsRequest(0, record.group_id, record.name, record.epoch, generation, named)
