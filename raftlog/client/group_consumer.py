"""`GroupConsumer`: reads what its group assigns to it, and goes on where the group has committed.

Each `poll` first does what the group wants: partitions that go to others are committed (where commits are automatic)
and given up, new ones begin at their committed offset, as the quorum has it then (S7, S8). So the records of a `poll`
are taken for processed when the next one is called, as in Kafka: a consumer that dies between the two has them read
again by whoever follows it. `commit` says so earlier.

Callbacks are called from `poll` (and `close`), never beside it: `on_revoked` with what is about to be given up and may
still be committed, `on_assigned` with what is new, `on_lost` with what was taken away without asking (the consumer was
silent for its session): nothing of that can be committed any more.

Positions are the offsets after the last record that was *handed out*. What is *not* here: membership
(`group_membership.py`), reading itself, which one `Consumer` for each topic does.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from ssl import SSLContext
from types import TracebackType

from raftlog.errors import InvalidRequest, RaftlogError, RetriableError
from raftlog.model import EARLIEST, LATEST

from .api import HttpApi
from .consumed import ConsumerRecord
from .consumer import DEFAULT_PREFETCH_BYTES, Consumer
from .group_api import GroupApi, GroupPartition, unpack
from .group_membership import GroupMembership, no_member
from .group_starts import RebalanceCallback, call_back, find_starts

logger = logging.getLogger("raftlog.client")

GONE = ("unknown_topic", "unknown_partition")
"""Of a topic that was deleted: the group will say so."""


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
        rebalance_timeout_ms: int = 300_000,
        prefetch_bytes: int = DEFAULT_PREFETCH_BYTES,
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
        ssl: SSLContext | None = None,
    ) -> None:
        """`pattern`: every topic whose whole name fits it (RE2), those to come included. `auto_offset_reset`: where to
        begin without a committed offset, or where that is no longer in the log: `"latest"`, `"earliest"` or `"error"`.
        `instance_id`: of a static member. `ssl`: as for a `Consumer`. Raises `InvalidRequest`."""
        if not topics and not pattern:
            raise InvalidRequest("invalid_request", "a group's consumer subscribes to topics, or to a pattern")
        if auto_offset_reset not in (EARLIEST, LATEST, "error"):
            raise InvalidRequest("invalid_config", "auto_offset_reset must be earliest, latest or error")
        if not 0 < heartbeat_interval_ms < session_timeout_ms:
            raise InvalidRequest("invalid_config", "heartbeat_interval_ms must be shorter than session_timeout_ms")
        self._bootstrap = bootstrap
        self._ssl = ssl
        self._reset = auto_offset_reset
        self._prefetch_bytes = prefetch_bytes
        self._callbacks = (on_assigned, on_revoked, on_lost)
        self._auto_commit = auto_commit_interval_ms / 1000 if enable_auto_commit else None
        self._api = HttpApi(bootstrap, ssl)
        self._group = GroupApi(self._api, group)
        wanted = {
            "topics": list(dict.fromkeys(topics)),
            "pattern": pattern,
            "instance_id": instance_id,
            "client_id": client_id,
            "assignor": assignor,
            "session_timeout_ms": session_timeout_ms,
            "rebalance_timeout_ms": rebalance_timeout_ms,
        }
        self._membership = GroupMembership(self._group, wanted, heartbeat_interval=heartbeat_interval_ms / 1000)
        self._session = 0
        self._generation = 0
        """By which it reads now."""
        self._positions: dict[GroupPartition, int] = {}
        """What it reads → the next offset to hand out."""
        self._committed: dict[GroupPartition, int] = {}
        """What is known to be committed of it."""
        self._readers: dict[str, Consumer] = {}
        """By topic."""
        self._former: set[asyncio.Task[None]] = set()
        """Former readers that let go of their connections."""
        self._ahead: deque[ConsumerRecord] = deque()
        """Came with others that were handed out."""
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
        self._membership.start()
        deadline = asyncio.get_running_loop().time() + timeout
        while True:
            await self._reconcile()
            self._commit_when_due()
            records = self._hand_out(max_records)
            if records or max_records <= 0 or not await self._more(max_records, deadline):
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
        return sorted(self._positions)

    @property
    def positions(self) -> dict[GroupPartition, int]:
        """What it reads → the offset of the next record to be handed out."""
        return dict(self._positions)

    @property
    def lag(self) -> dict[GroupPartition, int]:
        """How far its positions are behind what may be read, where a leader has told that."""
        found = {}
        for partition, position in self._positions.items():
            reader = self._readers.get(partition.topic)
            high_watermark = None if reader is None else reader.high_watermarks.get(partition.partition)
            if high_watermark is not None:
                found[partition] = max(0, high_watermark - position)
        return found

    async def committed(self) -> dict[GroupPartition, int]:
        """What the group has committed by now, of all its partitions."""
        self._check_open()
        return {one.group_partition: one.offset for one in await self._group.committed() if one.offset is not None}

    async def commit(self, offsets: Mapping[GroupPartition, int] | None = None, *, timeout: float = 15.0) -> None:
        """Commit these offsets, or all positions; returns when the quorum has decided. Raises `InvalidRequest`
        (`stale_generation`, `unknown_member`, `member_fenced`: a partition is another's by now) or `RetriableError`."""
        self._check_open()
        await self._commit(dict(self._positions if offsets is None else offsets), timeout)

    def commit_soon(
        self,
        offsets: Mapping[GroupPartition, int] | None = None,
        done: Callable[[RaftlogError | None], None] | None = None,
    ) -> None:
        """The same without waiting; `done` gets None or the error. Where nobody asks, a failure is logged."""
        self._check_open()
        wanted = dict(self._positions if offsets is None else offsets)

        async def run() -> None:
            failed: RaftlogError | None = None
            try:
                await self._commit(wanted, 15.0)
            except RaftlogError as error:
                failed = error
                if done is None:
                    logger.warning("committing offsets failed: %s", error)
            if done is not None:
                done(failed)

        task = asyncio.get_running_loop().create_task(run())
        self._commits.add(task)
        task.add_done_callback(self._commits.discard)

    async def seek(self, topic: str, partition: int, offset: int) -> None:
        """Go on from there, in a partition that it reads. Nothing is committed by it. Raises `InvalidRequest`."""
        found = next((one for one in self._positions if (one.topic, one.partition) == (topic, partition)), None)
        if found is None:
            raise InvalidRequest("unknown_partition", f"{topic}/{partition} is not assigned to this consumer")
        await self._readers[topic].seek(partition, offset)
        self._ahead = deque(r for r in self._ahead if (r.topic, r.partition) != (topic, partition))
        self._positions[found] = offset

    async def close(self) -> None:
        """Commit (where commits are automatic), leave the group, let go of all connections. Closing twice is fine."""
        if self._closing:
            return
        self._closing = True
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._api.close)
            stack.push_async_callback(self._close_readers)
            stack.push_async_callback(self._membership.close)
            stack.callback(self._end)  # until here `on_revoked` may commit
            if self._positions and self._membership.session == self._session:
                await self._give_up(list(self._positions), tell=True)
            if self._commits:
                await asyncio.wait(self._commits)

    async def __aenter__(self) -> GroupConsumer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

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
                await self._lose(list(self._positions))
            current = membership.current
            if current is None:
                return
            assigned = unpack(current.assigned)
            gone = [partition for partition in self._positions if partition not in set(assigned)]
            if gone:
                await self._give_up(gone, tell=True)
            membership.release({*gone, *unpack(current.revoking)})
            new = [partition for partition in assigned if partition not in self._positions]
            if new:
                membership.keep(new)
                await self._begin(new)
            self._generation = current.generation
        except BaseException:
            membership.changed.set()  # It is looked at again.
            raise

    async def _give_up(self, partitions: list[GroupPartition], *, tell: bool) -> None:
        """Commit what is processed, then read no more."""
        if tell:
            await call_back(self._callbacks[1], partitions)
        if self._auto_commit is not None:
            processed = {partition: self._positions[partition] for partition in partitions}
            try:
                await self._commit(processed, 5.0)
            except RaftlogError as error:
                logger.warning("committing what is given up failed: it will be read again. %s", error)
        self._stop_reading(partitions)

    async def _lose(self, partitions: list[GroupPartition]) -> None:
        if partitions:
            self._stop_reading(partitions)
            await call_back(self._callbacks[2], partitions)

    async def _begin(self, partitions: list[GroupPartition]) -> None:
        known = {one.group_partition: one for one in await self._group.committed()}
        starts = await find_starts(self._api, partitions, known, self._reset)
        for partition in partitions:
            self._positions[partition] = starts[partition]
            committed = known[partition].offset if partition in known else None
            if committed is not None:
                self._committed[partition] = committed
        for topic in sorted({partition.topic for partition in partitions}):
            self._read_anew(topic)
        await call_back(self._callbacks[0], partitions)

    # --- Inside ------------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise RetriableError("shutting_down", "the consumer is closed")

    async def _commit(self, offsets: Mapping[GroupPartition, int], timeout: float) -> None:
        # What it began with and went no further is committed, too: where "latest" was is found nowhere else.
        wanted = {
            partition: offset for partition, offset in offsets.items() if self._committed.get(partition) != offset
        }
        if not wanted:
            return
        current = self._membership.current
        if current is None or self._membership.session != self._session:
            raise no_member(self._membership.last_error)
        generation = max(self._generation, 0)
        await self._group.commit(wanted, current.member_id, current.incarnation, generation, timeout=timeout)
        self._committed.update(wanted)

    def _commit_when_due(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._auto_commit is None or now < self._next_commit or self._commits:
            return
        self._next_commit = now + self._auto_commit
        if self._positions and any(self._committed.get(p) != offset for p, offset in self._positions.items()):
            self.commit_soon()

    def _hand_out(self, max_records: int) -> list[ConsumerRecord]:
        records: list[ConsumerRecord] = []
        by_name = {(one.topic, one.partition): one for one in self._positions} if self._ahead else {}
        while self._ahead and len(records) < max_records:
            record = self._ahead.popleft()
            partition = by_name.get((record.topic, record.partition))
            if partition is not None:
                self._positions[partition] = record.offset + 1
                records.append(record)
        return records

    async def _more(self, max_records: int, deadline: float) -> bool:
        """Wait until some reader has records, or the group wants something; false when the deadline passed."""
        loop = asyncio.get_running_loop()
        left = deadline - loop.time()
        if left <= 0:
            return False
        reads = [loop.create_task(reader.poll(max_records, left)) for reader in self._readers.values()]
        wanted = loop.create_task(self._membership.changed.wait())
        try:
            await asyncio.wait([*reads, wanted], timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Who is stopped while it waits has taken nothing; what the others have must not be lost.
            for task in (*reads, wanted):
                task.cancel()
            outcomes = await asyncio.gather(*reads, wanted, return_exceptions=True)
            for outcome in outcomes[:-1]:
                if isinstance(outcome, list):
                    self._ahead.extend(outcome)
        for outcome in outcomes[:-1]:
            if isinstance(outcome, Exception) and not (isinstance(outcome, RaftlogError) and outcome.code in GONE):
                raise outcome
        return bool(self._ahead) or loop.time() < deadline

    # A call that is cancelled must leave positions and readers in step: these two never wait.

    def _stop_reading(self, partitions: Iterable[GroupPartition]) -> None:
        gone = set(partitions)
        for partition in gone:
            self._positions.pop(partition, None)
            self._committed.pop(partition, None)
        for topic in sorted({partition.topic for partition in gone}):
            self._read_anew(topic)

    def _read_anew(self, topic: str) -> None:
        """A reader of this topic for what is assigned now, at the positions of now. The former one closes by itself."""
        before = self._readers.pop(topic, None)
        if before is not None:
            closing = asyncio.get_running_loop().create_task(before.close())
            self._former.add(closing)
            closing.add_done_callback(self._former.discard)
        self._ahead = deque(record for record in self._ahead if record.topic != topic)
        starts = {one.partition: offset for one, offset in self._positions.items() if one.topic == topic}
        if starts:
            self._readers[topic] = Consumer(
                self._bootstrap,
                topic,
                sorted(starts),
                starts,
                prefetch_bytes=self._prefetch_bytes,
                on_out_of_range=self._reset,
                ssl=self._ssl,
            )

    async def _close_readers(self) -> None:
        readers, self._readers = self._readers, {}
        await asyncio.gather(*self._former, *(reader.close() for reader in readers.values()))
