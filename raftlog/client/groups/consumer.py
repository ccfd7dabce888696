"""`GroupConsumer`: reads what its group assigns to it, and goes on where the group has committed.

Each `poll` first does what the group wants: partitions that go to others are committed (where commits are automatic)
and given up, new ones begin at their committed offset, as the quorum has it then (S7, S8). So the records of a `poll`
are taken for processed when the next one is called, as in Kafka: a consumer that dies between the two has them read
again by whoever follows it. `commit` says so earlier.

Callbacks are called from `poll` (and `close`), never beside it: `on_revoked` with what is about to be given up and may
still be committed, `on_assigned` with what is new, `on_lost` with what was taken away without asking (the consumer was
silent for its session, did not poll for `max_poll_interval_ms`, or a topic was deleted): nothing of that can be
committed any more. A callback that raises does so from `poll`, after what it was told of has happened all the same.

Positions are the offsets after the last record that was *handed out*.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from ssl import SSLContext
from types import TracebackType

from raftlog.client.cluster.api import HttpApi
from raftlog.client.consuming.consumer import Consumer
from raftlog.client.consuming.reader import READ_COMMITTED, Start, parse_isolation
from raftlog.client.consuming.records import ConsumerRecord
from raftlog.client.consuming.settings import DEFAULT_PREFETCH_BYTES
from raftlog.client.transactions.api import ConsumedOffsets
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError
from raftlog.model import EARLIEST, LATEST

from .api import GroupApi, GroupPartition
from .membership import GroupMembership, no_member
from .progress import GroupProgress
from .reading import READ_AGAIN_SECONDS, GroupReading
from .starts import RebalanceCallback, call_back, find_start, find_starts

logger = logging.getLogger("raftlog.client")

REVOKED_COMMIT_TIMEOUT = 5.0
MAX_COMMITS_UNDER_WAY = 1_000
MIN_REBALANCE_TIMEOUT_MS, MAX_REBALANCE_TIMEOUT_MS = 1_000, 1_800_000


class GroupConsumer:
    """A member of a consumer group. Belongs to one event loop, and one task at a time polls; `close` it, or use it with
    `async with`."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        group: str,
        topics: Sequence[str] = (),
        *,
        pattern: str = "",
        instance_id: str = "",
        client_id: str = "",
        assignor: str = "uniform",
        auto_offset_reset: str = LATEST,
        enable_auto_commit: bool = True,
        auto_commit_interval_ms: int = 5_000,
        session_timeout_ms: int = 45_000,
        heartbeat_interval_ms: int = 3_000,
        max_poll_interval_ms: int = 300_000,
        rebalance_timeout_ms: int | None = None,
        prefetch_bytes: int = DEFAULT_PREFETCH_BYTES,
        isolation: str = READ_COMMITTED,
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
        ssl: SSLContext | None = None,
    ) -> None:
        """`pattern`: every topic whose whole name fits it (RE2), those to come included. `auto_offset_reset`: where to
        begin without a committed offset, or where that is no longer in the log: `"latest"`, `"earliest"` or `"error"`.
        `max_poll_interval_ms`: whoever does not poll for so long leaves the group. `rebalance_timeout_ms`: how long it
        may take to give a partition up; by default the same. `instance_id`: of a static member. `prefetch_bytes`: of
        all topics together. `isolation`, `ssl`: as for a `Consumer`. Raises `InvalidRequest`."""
        if not topics and not pattern:
            raise InvalidRequest("invalid_request", "a group's consumer subscribes to topics, or to a pattern")
        if auto_offset_reset not in (EARLIEST, LATEST, "error"):
            raise InvalidRequest("invalid_config", "auto_offset_reset must be earliest, latest or error")
        _check_times(heartbeat_interval_ms, session_timeout_ms, max_poll_interval_ms)
        self._reset = auto_offset_reset
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._on_lost = on_lost
        self._auto_commit = auto_commit_interval_ms / 1000 if enable_auto_commit else None
        self._api = HttpApi(bootstrap, ssl)
        self._group_id = group
        self._group = GroupApi(self._api, group)
        wanted = {
            "topics": list(dict.fromkeys(topics)),
            "pattern": pattern,
            "instance_id": instance_id,
            "client_id": client_id,
            "assignor": assignor,
            "session_timeout_ms": session_timeout_ms,
            "rebalance_timeout_ms": rebalance_timeout_ms
            or min(max(max_poll_interval_ms, MIN_REBALANCE_TIMEOUT_MS), MAX_REBALANCE_TIMEOUT_MS),
        }
        self._membership = GroupMembership(
            self._group,
            wanted,
            heartbeat_interval=heartbeat_interval_ms / 1000,
            max_poll_interval=max_poll_interval_ms / 1000,
        )
        parse_isolation(isolation)
        self._reading = GroupReading(bootstrap, prefetch_bytes, auto_offset_reset, isolation, ssl)
        self._progress = GroupProgress()
        self._session = 0
        self._generation = 0
        """By which it reads now."""
        self._next_commit = 0.0
        self._commits: set[asyncio.Task[None]] = set()
        self._closing = False
        self._closed = False

    # --- Reading -----------------------------------------------------------------------------------------------------

    async def poll(self, max_records: int = 500, timeout: float = 1.0) -> list[ConsumerRecord]:
        """Up to `max_records` records, as soon as there are any; none if there are none for `timeout` seconds. What
        was handed out before counts as processed.

        Raises `InvalidRequest` for what cannot be mended (a bad pattern, an offset that is gone), `RetriableError` only
        where partitions were assigned and the quorum does not say where to go on."""
        self._check_open()
        if self._closing:
            raise RetriableError("shutting_down", "the consumer is being closed")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        self._progress.processed = dict(self._reading.positions)
        self._membership.start()
        with self._membership.polling():
            while True:
                await self._reconcile()
                self._commit_when_due()
                records = self._reading.hand_out(max_records)
                if records or max_records <= 0:
                    return records
                if not await self._reading.wait(max_records, deadline, self._membership.changed):
                    return records

    def __aiter__(self) -> GroupConsumer:
        """Every record, for ever."""
        return self

    async def __anext__(self) -> ConsumerRecord:
        while True:
            records = await self.poll(1)
            if records:
                return records[0]

    # --- Positions and commits ---------------------------------------------------------------------------------------

    @property
    def assignment(self) -> list[GroupPartition]:
        """What it reads now."""
        return sorted(self._reading.positions)

    @property
    def positions(self) -> dict[GroupPartition, int]:
        """What it reads → the offset of the next record to be handed out."""
        return dict(self._reading.positions)

    @property
    def lag(self) -> dict[GroupPartition, int]:
        """How far its positions are behind what may be read, where a leader has told that."""
        return self._reading.lag

    async def committed(self) -> dict[GroupPartition, int]:
        """What the group has committed by now, of all its partitions."""
        self._check_open()
        return {one.group_partition: one.offset for one in await self._group.committed() if one.offset is not None}

    async def commit(self, offsets: Mapping[GroupPartition, int] | None = None, *, timeout: float = 15.0) -> None:
        """Commit these offsets, or all positions; returns when the quorum has decided. Raises `InvalidRequest`
        (`stale_generation`, `unknown_member`, `member_fenced`: a partition is another's by now) or `RetriableError`."""
        self._check_open()
        await self._commit(dict(self._reading.positions if offsets is None else offsets), timeout)

    def commit_soon(
        self,
        offsets: Mapping[GroupPartition, int] | None = None,
        done: Callable[[RaftlogError | None], None] | None = None,
    ) -> None:
        """The same without waiting; `done` gets None or the error. Where nobody asks, a failure is logged. Raises
        `RetriableError` (`overloaded`) while very many are under way."""
        self._check_open()
        if len(self._commits) >= MAX_COMMITS_UNDER_WAY:
            raise RetriableError("overloaded", f"{MAX_COMMITS_UNDER_WAY} commits wait for the quorum: slow down")
        wanted = dict(self._reading.positions if offsets is None else offsets)

        async def run() -> None:
            failed: RaftlogError | None = None
            try:
                await self._commit(wanted, 15.0)
            except RaftlogError as error:
                failed = error
                if done is None:
                    logger.warning("committing offsets failed: %s", error)
            except Exception as error:  # whatever it is: who waits for `done` would wait for ever
                logger.exception("committing offsets failed")
                failed = RaftlogError("internal_error", f"the client met an error: {error!r}")
            if done is not None:
                done(failed)

        task = asyncio.get_running_loop().create_task(run())
        self._commits.add(task)
        task.add_done_callback(self._commits.discard)

    def consumed(self) -> ConsumedOffsets:
        """Everything that was handed out and is not committed: for `Transaction.send_offsets`. Automatic commits must
        be off. Raises `InvalidRequest` (`stale_generation`: a partition was taken away meanwhile; `unknown_member`)."""
        if self._auto_commit is not None:
            told = "a consumer whose offsets are committed by transactions has enable_auto_commit=False"
            raise InvalidRequest("invalid_config", told)
        self._progress.check_kept()
        if not self._reading.positions:
            return ConsumedOffsets(self._group_id, ())  # perhaps it is no member yet, and nothing was handed out
        current = self._membership.current
        if current is None or self._membership.session != self._session:
            raise no_member(self._membership.last_error)
        return ConsumedOffsets(
            group=self._group_id,
            ranges=self._progress.ranges(self._reading.positions),
            member_id=current.member_id,
            incarnation=current.incarnation,
            generation=max(self._generation, 0),
        )

    def consumed_is_committed(self, offsets: ConsumedOffsets) -> None:
        """That is committed now."""
        self._progress.consumed_is_committed(offsets, self._reading.positions)

    async def seek_to_committed(self) -> None:
        """Go back, in all that it reads, to what the group has committed by now (S7); where that is nothing, to where
        this consumer began. After a transaction that was aborted: what it had consumed comes again."""
        positions = self._reading.positions
        told = await self._group.committed() if positions else []  # before it is a member there may be no group
        known = {one.group_partition: one.offset for one in told if one.offset is not None}
        for partition, offset in self._progress.go_back(positions, known).items():
            self._reading.seek(partition, offset)

    async def seek(self, topic: str, partition: int, start: Start) -> None:
        """Go on from there, in a partition that it reads: at an offset, `"earliest"`, `"latest"`, or `"@<milliseconds
        since 1970>"`. Nothing is committed by it, and commits of offsets below the committed one change nothing (S8).
        Raises `InvalidRequest`, or `RetriableError` where the offset has to be asked for and nobody answers."""
        found = self._assigned(topic, partition)
        offset = await find_start(self._api, found, start)
        if found not in self._reading.positions:
            raise InvalidRequest("unknown_partition", f"{found} was taken from this consumer meanwhile")
        self._reading.seek(found, offset)

    def pause(self, partitions: Iterable[GroupPartition]) -> None:
        """Hand out nothing of these until `resume`, and fetch nothing more of them. They stay its own (call `poll`
        nevertheless), and their positions stay. A partition that is given up is not paused any more when it comes
        back. Raises `InvalidRequest` for what it does not read; then nothing is paused."""
        self._check_open()
        self._reading.pause([self._assigned(one.topic, one.partition) for one in partitions])

    def resume(self, partitions: Iterable[GroupPartition]) -> None:
        """Go on with these where they were paused; the others are none of its business."""
        self._check_open()
        named = {(partition.topic, partition.partition) for partition in partitions}
        self._reading.resume([one for one in self._reading.paused if (one.topic, one.partition) in named])

    @property
    def paused(self) -> list[GroupPartition]:
        """What it reads and holds back."""
        return sorted(self._reading.paused)

    def shows_life(self) -> None:
        """The program takes what an earlier `poll` gave: as if it polled, for `max_poll_interval_ms`. Any thread."""
        self._membership.shows_life()

    async def close(self, *, processed: bool = True) -> None:
        """Commit (where commits are automatic), leave the group, let go of all connections. Closing twice is fine.

        Without `processed` what the last `poll` gave is not committed, so whoever follows reads it again. `async with`
        closes so when an exception ends it."""
        if self._closing:
            return
        self._closing = True
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._api.close)
            stack.push_async_callback(self._reading.close)
            stack.push_async_callback(self._membership.close)
            stack.callback(self._end)  # until here `on_revoked` may commit
            mine = list(self._reading.positions)
            if self._membership.session != self._session:
                await self._lose(mine)
            elif mine:
                await self._give_up(mine, processed=processed)
            if self._commits:
                await asyncio.wait(self._commits)

    async def __aenter__(self) -> GroupConsumer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close(processed=kind is None)

    # --- What the group wants ----------------------------------------------------------------------------------------

    async def _reconcile(self) -> None:
        membership = self._membership
        if membership.error is not None:
            raise membership.error
        if not membership.changed.is_set():
            return
        membership.changed.clear()
        try:
            if membership.session != self._session:
                self._session = membership.session
                await self._lose(list(self._reading.positions))
            current = membership.current
            if current is None:
                return
            plan = membership.member.plan(self._reading.positions)
            try:
                await self._lose(plan.lost)
                if plan.revoked:
                    await self._give_up(plan.revoked)
            finally:
                if membership.session == self._session:
                    membership.release(one for one in plan.free if one not in self._reading.positions)
            self._generation = current.generation
            if plan.new:
                await self._begin(plan.new)
        except BaseException:
            membership.changed.set()  # It is looked at again.
            raise

    async def _give_up(self, partitions: list[GroupPartition], *, processed: bool = True) -> None:
        """Commit what is processed, then read no more. Where the callback raises, nothing is committed."""
        try:
            await self._call_back(self._on_revoked, partitions)
            if self._auto_commit is not None:
                await self._commit_at_the_end(partitions, processed)
        except Exception:
            self._stop_reading(partitions)
            raise
        self._stop_reading(partitions)

    async def _commit_at_the_end(self, partitions: list[GroupPartition], processed: bool) -> None:
        positions = self._reading.positions
        ends = {one: positions[one] for one in partitions if one in positions}
        if not processed:
            ends = self._progress.processed_of(ends)
        try:
            await self._commit(ends, REVOKED_COMMIT_TIMEOUT)
        except RaftlogError as error:
            logger.warning("committing what is given up failed: it will be read again. %s", error)

    async def _lose(self, partitions: list[GroupPartition]) -> None:
        if partitions:
            self._stop_reading(partitions)
            await self._call_back(self._on_lost, partitions)

    async def _begin(self, partitions: list[GroupPartition]) -> None:
        known = {one.group_partition: one for one in await self._group.committed()}
        starts = await find_starts(self._api, partitions, known, self._reset)
        for partition in partitions:
            committed = known[partition].offset if partition in known else None
            if committed is not None:
                self._progress.committed[partition] = committed
        self._progress.begin(starts)
        self._reading.begin(starts)
        if len(starts) < len(partitions):
            # Of topics that were deleted meanwhile: should the group not say so, they are asked for again.
            asyncio.get_running_loop().call_later(READ_AGAIN_SECONDS, self._membership.changed.set)
        await self._call_back(self._on_assigned, list(starts))

    async def _call_back(self, callback: RebalanceCallback | None, partitions: Sequence[GroupPartition]) -> None:
        if callback is not None:
            with self._membership.calling():
                await call_back(callback, partitions)

    # --- Inside ------------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise RetriableError("shutting_down", "the consumer is closed")

    async def _commit(self, offsets: Mapping[GroupPartition, int], timeout: float) -> None:
        wanted = self._progress.uncommitted(offsets)
        if not wanted:
            return
        current = self._membership.current
        if current is None or self._membership.session != self._session:
            raise no_member(self._membership.last_error)
        generation = max(self._generation, 0)
        await self._group.commit(wanted, current.member_id, current.incarnation, generation, timeout=timeout)
        self._progress.committed.update(wanted)

    def _commit_when_due(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._auto_commit is None or now < self._next_commit or self._commits:
            return
        self._next_commit = now + self._auto_commit
        if self._progress.uncommitted(self._reading.positions):
            self.commit_soon()

    def _stop_reading(self, partitions: Sequence[GroupPartition]) -> None:
        self._progress.forget(partitions, self._reading.positions)
        self._reading.stop(partitions)

    def _assigned(self, topic: str, partition: int) -> GroupPartition:
        """Raises `InvalidRequest`."""
        for one in reversed(self._reading.positions):  # of two topics of one name the one that was assigned last
            if (one.topic, one.partition) == (topic, partition):
                return one
        raise InvalidRequest("unknown_partition", f"{topic}/{partition} is not assigned to this consumer")


def _check_times(heartbeat_interval_ms: int, session_timeout_ms: int, max_poll_interval_ms: int) -> None:
    if not 0 < heartbeat_interval_ms < session_timeout_ms:
        raise InvalidRequest("invalid_config", "heartbeat_interval_ms must be shorter than session_timeout_ms")
    if max_poll_interval_ms <= 0:
        raise InvalidRequest("invalid_config", "max_poll_interval_ms must be positive")


Consumer.make_group_consumer = GroupConsumer  # what `Consumer.subscribe` gives
