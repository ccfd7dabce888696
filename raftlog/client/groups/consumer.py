"""`GroupConsumer`: reads the partitions that its group assigns to it, from the group's committed offsets on.

Each `poll` first carries out the group's assignment: it commits (with automatic commits) and releases the partitions
that move to other members, and starts new ones at their committed offsets as the quorum has them at that moment (S7,
S8). As in Kafka, the records of one `poll` count as processed when the next one is called: if a consumer dies between
the two, the next owner of the partitions reads those records again. `commit` marks them as processed earlier.

Callbacks run only inside `poll` and `close`:

* `on_revoked` gets the partitions that are about to be released and may still be committed;
* `on_assigned` gets the new partitions;
* `on_lost` gets partitions whose ownership ended without notice, so nothing of them can be committed any more: the
  consumer's session expired, it did not poll for `max_poll_interval_ms`, or a topic was deleted.

An exception in a callback is raised from `poll`; the change that the callback announced takes place nevertheless.

Positions are the offsets after the last record that was *handed out*.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import NamedTuple, TypeAlias, TypeVar, Unpack

from raftlog.api.groups import GroupOffsetInfo, GroupPartition, JoinGroup
from raftlog.api.transactions import ConsumedOffsets
from raftlog.client.cluster.api import HttpApi
from raftlog.client.cluster.attempts import failed_by_bug
from raftlog.client.cluster.connection_security import ConnectionSecurity
from raftlog.client.consuming.records import ConsumedBatch, ConsumerRecord
from raftlog.client.keywords import GroupConsumerKeywords
from raftlog.client.settings import GroupConsumerSettings, takes
from raftlog.client.times import Seconds, StartTime, seconds_of, start_at
from raftlog.config import check_topic_name
from raftlog.errors import ClientClosed, InvalidRequest, RaftlogError, RetriableError
from raftlog.metrics import client_catalogue as names
from raftlog.metrics.measure import Family

from .calls import MemberCalls
from .membership import GroupMembership, no_member
from .missing import MissingTopics
from .progress import GroupProgress
from .reading import READ_AGAIN_SECONDS, GroupReading
from .starts import find_start, find_starts

logger = logging.getLogger("raftlog.client")

REVOKED_COMMIT_TIMEOUT = 5.0
MAX_COMMITS_UNDER_WAY = 1_000
MIN_REBALANCE_TIMEOUT_MS, MAX_REBALANCE_TIMEOUT_MS = 1_000, 1_800_000

Taken = TypeVar("Taken")

CommitOffsets: TypeAlias = Mapping[GroupPartition, int] | Mapping[tuple[str, int], int]
RebalanceCallback: TypeAlias = Callable[[list[GroupPartition]], Awaitable[None] | None]


class _Lookup(NamedTuple):
    """A lookup of start offsets, and the assignment that it is for."""

    what: tuple[int, int, frozenset[GroupPartition]]
    """Session, generation and partitions."""
    task: asyncio.Task[tuple[dict[GroupPartition, GroupOffsetInfo], dict[GroupPartition, int]]]


class GroupConsumer:
    """A member of a consumer group.

    A group consumer belongs to one event loop, and only one task at a time may poll. `close` it, or use it with `async
    with`.
    """

    @takes(GroupConsumerSettings)
    def __init__(
        self,
        bootstrap: str | Sequence[str],
        group: str,
        topics: Sequence[str] = (),
        *,
        pattern: str = "",
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
        settings: GroupConsumerSettings | None = None,
        **keywords: Unpack[GroupConsumerKeywords],
    ) -> None:
        """Configure the consumer; the first `poll` joins the group.

        `pattern` subscribes to every topic whose whole name matches (RE2), including topics created later. The
        callbacks get lists of partitions: new ones, ones about to be released, and ones that were lost. The other
        keywords are the fields of `GroupConsumerSettings`; they replace those of `settings`. Raises `InvalidRequest`.
        """
        own = GroupConsumerSettings.of(settings, keywords)
        topics = _names(topics)
        if not topics and not pattern:
            raise InvalidRequest("invalid_request", "a group consumer needs topics or a pattern to subscribe to")
        self._reset = own.auto_offset_reset
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._on_lost = on_lost
        self._auto_commit = own.auto_commit_interval_ms / 1000 if own.enable_auto_commit else None
        self._api = HttpApi(bootstrap, ConnectionSecurity(own))
        self._group_id = group
        self._group = MemberCalls(self._api, group)
        wanted = JoinGroup(
            topics=list(dict.fromkeys(topics)),
            pattern=pattern,
            instance_id=own.instance_id,
            client_id=own.client_id,
            assignor=own.assignor,  # type: ignore[arg-type]  # the node checks it
            session_timeout_ms=own.session_timeout_ms,
            rebalance_timeout_ms=own.rebalance_timeout_ms
            or min(max(int(own.max_poll_interval_ms), MIN_REBALANCE_TIMEOUT_MS), MAX_REBALANCE_TIMEOUT_MS),
        )
        self._membership = GroupMembership(
            self._group,
            wanted,
            heartbeat_interval=own.heartbeat_interval_ms / 1000,
            max_poll_interval=own.max_poll_interval_ms / 1000,
        )
        self._reading = GroupReading(bootstrap, own)
        self._progress = GroupProgress()
        self._missing = MissingTopics(self._api, group, wanted.topics, pattern)
        self._session = 0
        self._generation = 0
        """Generation of the assignment that it reads by."""
        self._lookup: _Lookup | None = None
        """The lookup of start offsets that a `poll` began."""
        self._next_commit = 0.0
        self._commits: set[asyncio.Task[None]] = set()
        self._closing = False
        self._closed = False

    # --- Reading -----------------------------------------------------------------------------------------------------

    async def poll(self, max_records: int = 500, timeout: Seconds = 1.0) -> list[ConsumerRecord]:
        """Return up to `max_records` records as soon as there are any, or none after `timeout` seconds.

        Callbacks, and the last commit of partitions that are released, may take longer. The records of the previous
        call count as processed. Raises `InvalidRequest` for an error that a retry cannot fix (a bad pattern, an offset
        that is no longer in the log), and `RetriableError` only if partitions were assigned and the quorum does not
        return their committed offsets.
        """
        return self._reading.hand_out(len(await self.look_ahead(max_records, seconds_of(timeout))))

    async def look_ahead(self, max_records: int, timeout: float) -> list[ConsumerRecord]:
        """Do what `poll` does, and return the records, but do not hand them out yet."""
        return await self._polled(lambda: self._reading.look_ahead(max_records), timeout, max_records)

    async def next_batch(self, timeout: Seconds = 1.0) -> ConsumedBatch | None:
        """Return the next batch of any assigned partition, or None after `timeout` seconds.

        The fastest way to read: columns are decoded on demand, as lists, or with `to_arrow` and `to_pandas`. The
        batches or records of the previous call count as processed. Raises as `poll` does.
        """
        return await self._polled(self._reading.next_batch, seconds_of(timeout), batches=True) or None

    async def batches(self) -> AsyncIterator[ConsumedBatch]:
        """Iterate over the batches without end; each counts as processed when the program requests the next one."""
        while True:
            batch = await self.next_batch()
            if batch is not None:
                yield batch

    async def _polled(
        self, take: Callable[[], Taken], timeout: float, max_records: int = 1, *, batches: bool = False
    ) -> Taken:
        """Take part in the group, and return what `take` returns once that is something."""
        self._check_open()
        if self._closing:
            raise ClientClosed("the consumer is being closed")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        self._progress.processed = dict(self._reading.positions)
        self._membership.start()
        with self._membership.polling():
            while True:
                await self._reconcile(deadline)
                self._commit_when_due()
                if self._membership.current is not None:
                    self._missing.polled(has_partitions=bool(self._reading.positions))
                taken = take()
                if taken or max_records <= 0:
                    return taken
                if not await self._reading.wait(max_records, deadline, self._membership.changed, batches=batches):
                    if self._membership.current is None and self._api.last_error is not None:
                        self._membership.unanswered(self._api.last_error)
                    return taken

    def iterated(self, count: int) -> None:
        """Hand out the first `count` records of `look_ahead`, one by one: all but the last count as processed."""
        if count:
            self._reading.hand_out(count - 1)
            self._progress.processed = dict(self._reading.positions)
            self._reading.hand_out(1)

    def __aiter__(self) -> GroupConsumer:
        """Iterate over the records without end."""
        return self

    async def __anext__(self) -> ConsumerRecord:
        while True:
            records = await self.poll(1)
            if records:
                return records[0]

    # --- Positions and commits ---------------------------------------------------------------------------------------

    @property
    def assignment(self) -> list[GroupPartition]:
        """Partitions that are assigned to this consumer and that it reads now."""
        return sorted(self._reading.positions)

    @property
    def positions(self) -> dict[GroupPartition, int]:
        """Offset of the next record to hand out, by partition."""
        return dict(self._reading.positions)

    @property
    def lag(self) -> dict[GroupPartition, int]:
        """Number of offsets between position and readable end, by partition, if a leader has reported that end."""
        return self._reading.lag

    @property
    def caught_up(self) -> bool:
        """True if every assigned partition's readable end is known and the position is there.

        False while none is assigned. `lag` lacks partitions that no leader has answered for yet, so that its sum alone
        does not tell this.
        """
        return self._reading.caught_up

    @property
    def metrics(self) -> list[Family]:
        """The consumer's numbers now: assigned partitions, prefetched bytes, fetches, retries, lag
        (`docs/metrics.md`)."""
        reading = self._reading
        lags: Counter[tuple[str, str]] = Counter()
        for one, lag in reading.lag.items():  # of a topic that was created again, both may be read for a while
            lags[one.topic, str(one.partition)] += lag
        return [
            Family.of(names.ASSIGNED, len(reading.positions)),
            Family.of(names.PREFETCHED, reading.prefetched_bytes),
            Family(names.LAG, list(lags.items())),
            *reading.counts.families(),
        ]

    async def committed(self) -> dict[GroupPartition, int]:
        """Return the group's committed offsets, for all of its partitions."""
        self._check_open()
        return {one.group_partition: one.offset for one in await self._group.committed() if one.offset is not None}

    async def commit(self, offsets: CommitOffsets | None = None, *, timeout: Seconds = 15.0) -> None:
        """Commit these offsets, or all positions, and return once the quorum has decided.

        A partition is a `GroupPartition`, or `(topic, partition)` of an assigned one. The offset is that of the next
        record to read: one more than that of the last processed record.

        Raises `InvalidRequest` (`stale_generation`, `unknown_member`, `member_fenced`: a partition has another owner
        now) or `RetriableError`.
        """
        self._check_open()
        await self._commit(self._wanted(offsets), seconds_of(timeout))

    def commit_soon(
        self,
        offsets: CommitOffsets | None = None,
        done: Callable[[RaftlogError | None], None] | None = None,
    ) -> None:
        """Commit without waiting; `done` gets None or the error.

        Without `done`, a failure is logged. Raises `RetriableError` (`overloaded`) if `MAX_COMMITS_UNDER_WAY` commits
        are in flight.
        """
        self._check_open()
        if len(self._commits) >= MAX_COMMITS_UNDER_WAY:
            raise RetriableError("overloaded", f"{MAX_COMMITS_UNDER_WAY} commits are in flight: commit less often")
        wanted = self._wanted(offsets)

        async def run() -> None:
            failed: RaftlogError | None = None
            try:
                await self._commit(wanted, 15.0)
            except RaftlogError as error:
                failed = error
                if done is None:
                    logger.warning("committing offsets failed: %s", error)
            except Exception as error:  # without a call, the owner of `done` would wait forever
                logger.exception("committing offsets failed")
                failed = failed_by_bug(error)
            if done is not None:
                done(failed)

        task = asyncio.get_running_loop().create_task(run())
        self._commits.add(task)
        task.add_done_callback(self._commits.discard)

    def consumed(self) -> ConsumedOffsets:
        """Return everything that was handed out and is not committed, for `Transaction.send_offsets`.

        Automatic commits must be off. Raises `InvalidRequest` (`stale_generation`: a partition was taken away
        meanwhile; `unknown_member`).
        """
        if self._auto_commit is not None:
            told = "to commit a consumer's offsets by transactions, set enable_auto_commit=False"
            raise InvalidRequest("invalid_config", told)
        self._progress.check_kept()
        if not self._reading.positions:
            return ConsumedOffsets(self._group_id, ())  # perhaps it has not joined yet, and nothing was handed out
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
        """Record that a transaction has committed `offsets`."""
        self._progress.consumed_is_committed(offsets, self._reading.positions)

    async def seek_to_committed(self) -> None:
        """Seek all partitions back to the group's committed offsets (S7).

        A partition without a committed offset goes back to where this consumer began. Use it after an aborted
        transaction: the records that it had consumed are read again.
        """
        positions = self._reading.positions
        told = await self._group.committed() if positions else []  # before it has joined, the group may not exist
        known = {one.group_partition: one.offset for one in told if one.offset is not None}
        for partition, offset in self._progress.go_back(positions, known).items():
            self._reading.seek(partition, offset)

    async def seek(self, topic: str, partition: int, start: StartTime) -> None:
        """Continue reading a partition at an offset, `"earliest"`, `"latest"`, a `datetime` or `"@<milliseconds>"`.

        The partition must be assigned to this consumer. Nothing is committed, and commits of offsets below the
        committed one have no effect (S8). Raises `InvalidRequest`, or `RetriableError` if the offset has to be looked
        up and no broker answers.
        """
        found = self._assigned(topic, partition)
        offset = await find_start(self._api, found, start_at(start))
        if found not in self._reading.positions:
            raise InvalidRequest(
                "unknown_partition", f"{found} was reassigned during the seek: it is not this consumer's any more"
            )
        self._reading.seek(found, offset)

    def pause(self, partitions: Iterable[GroupPartition]) -> None:
        """Neither hand out nor fetch these partitions until `resume`.

        They stay assigned, with their positions; `poll` must still be called. A partition that is released is no longer
        paused when it is assigned again. Raises `InvalidRequest` if one of them is not assigned; then none is paused.
        """
        self._check_open()
        self._reading.pause([self._assigned(one.topic, one.partition) for one in partitions])

    def resume(self, partitions: Iterable[GroupPartition]) -> None:
        """Continue with these partitions; ignore those that are not paused or not assigned."""
        self._check_open()
        named = {(partition.topic, partition.partition) for partition in partitions}
        self._reading.resume([one for one in self._reading.paused if (one.topic, one.partition) in named])

    @property
    def paused(self) -> list[GroupPartition]:
        """Assigned partitions that are paused."""
        return sorted(self._reading.paused)

    def shows_life(self) -> None:
        """Count as a poll: the program still consumes what an earlier `poll` returned. Thread-safe.

        The next `poll` is due `max_poll_interval_ms` after this call.
        """
        self._membership.shows_life()

    async def close(self, *, processed: bool = True) -> None:
        """Commit (with automatic commits), leave the group and close all connections. Closing twice is allowed.

        Without `processed`, the records of the last `poll` are not committed, so the next owner reads them again.
        `async with` closes that way if its block raises.
        """
        if self._closing:
            return
        self._closing = True
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._api.close)
            stack.push_async_callback(self._missing.close)
            stack.push_async_callback(self._reading.close)
            stack.push_async_callback(self._membership.close)
            stack.push_async_callback(self._forget_lookup)
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

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> None:
        await self.close(processed=kind is None)

    # --- Assignment changes ------------------------------------------------------------------------------------------

    async def _reconcile(self, deadline: float) -> None:
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
            if plan.new and not await self._begin(plan.new, deadline):
                membership.changed.set()  # The next poll continues.
        except BaseException:
            membership.changed.set()  # The next poll tries again.
            raise

    async def _give_up(self, partitions: list[GroupPartition], *, processed: bool = True) -> None:
        """Commit what is processed, then stop reading. If the callback raises, nothing is committed."""
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
            logger.warning("committing released partitions failed: their records will be read again. %s", error)

    async def _lose(self, partitions: list[GroupPartition]) -> None:
        if partitions:
            self._stop_reading(partitions)
            await self._call_back(self._on_lost, partitions)

    async def _begin(self, partitions: list[GroupPartition], deadline: float) -> bool:
        """Begin to read these partitions; return False if their offsets are not known by the deadline (loop time).

        The lookup goes on between polls. Its result is used for this assignment only: another member may have owned,
        and committed, a partition that comes back later (S8).
        """
        loop = asyncio.get_running_loop()
        what = (self._session, self._generation, frozenset(partitions))
        if self._lookup is None or self._lookup.what != what:
            await self._forget_lookup()
            self._lookup = _Lookup(what, loop.create_task(self._look_up(partitions)))
        task = self._lookup.task
        await asyncio.wait([task], timeout=max(0.0, deadline - loop.time()))
        if not task.done():
            return False
        self._lookup = None
        known, starts = task.result()
        for partition in partitions:
            committed = known[partition].offset if partition in known else None
            if committed is not None:
                self._progress.committed[partition] = committed
        self._progress.begin(starts)
        self._reading.begin(starts)
        if len(starts) < len(partitions):
            # Partitions of topics that were deleted meanwhile. If the group still assigns them later, look them up
            # again.
            loop.call_later(READ_AGAIN_SECONDS, self._membership.changed.set)
        await self._call_back(self._on_assigned, list(starts))
        return True

    async def _look_up(
        self, partitions: list[GroupPartition]
    ) -> tuple[dict[GroupPartition, GroupOffsetInfo], dict[GroupPartition, int]]:
        """Return what the group has committed, and where to begin."""
        known = {one.group_partition: one for one in await self._group.committed()}
        return known, await find_starts(self._api, partitions, known, self._reset)

    async def _forget_lookup(self) -> None:
        former, self._lookup = self._lookup, None
        if former is not None:
            former.task.cancel()
            await asyncio.gather(former.task, return_exceptions=True)

    async def _call_back(self, callback: RebalanceCallback | None, partitions: Sequence[GroupPartition]) -> None:
        """Call it with the sorted partitions; await the result if it is a coroutine."""
        if callback is not None:
            with self._membership.calling():
                told = callback(sorted(partitions))
                if inspect.isawaitable(told):
                    await told

    # --- Inside ------------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("the consumer is closed: create a new one")

    def _wanted(self, offsets: CommitOffsets | None) -> dict[GroupPartition, int]:
        """Return the offsets to commit. Raises `TypeError`, and `InvalidRequest` (`unknown_partition`)."""
        if offsets is None:
            return dict(self._reading.positions)
        if not isinstance(offsets, Mapping):
            raise TypeError(f"offsets must be a mapping from partitions to offsets, not {type(offsets).__name__}")
        wanted: dict[GroupPartition, int] = {}
        for partition, offset in offsets.items():
            if not isinstance(partition, tuple) or len(partition) not in (2, 3):
                raise TypeError(f"a partition must be a GroupPartition or (topic, partition), not {partition!r}")
            if not isinstance(offset, int) or isinstance(offset, bool):
                raise TypeError(f"an offset must be an int, not {offset!r}")
            named = partition if isinstance(partition, GroupPartition) and partition.topic_id else None
            wanted[named or self._assigned(partition[0], partition[1])] = offset
        return wanted

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
        """Return the assigned partition of that name. Raises `InvalidRequest`."""
        for one in reversed(self._reading.positions):  # of two topics with the same name, the one assigned last
            if (one.topic, one.partition) == (topic, partition):
                return one
        raise InvalidRequest("unknown_partition", f"{topic}/{partition} is not assigned to this consumer")


def _names(topics: Sequence[str]) -> list[str]:
    """Return the names of topics. Raises `InvalidRequest` for a single string, whose letters would be names."""
    if isinstance(topics, str | bytes):
        raise InvalidRequest("invalid_request", f"topics must be a list of names: [{topics!r}]")
    return [check_topic_name(topic) for topic in topics]
