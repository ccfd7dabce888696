"""Long polls: a consumer's fetch over many partitions, answered when there is enough, something failed, or time is up.

    1. Read every partition up to its exposed high watermark, or its last stable offset for who reads committed: that
       first, the aborted ranges after, so that they tell of all below it (S13). Enough bytes, or an error: answer.
    2. Otherwise let everything go again and wait: for a moved high watermark, without which no last stable offset moves
       (or the end of a leadership), in any of them, or for the deadline. Then read once more.
    3. What is not in memory is loaded by a worker before the answer; the loop never waits for the disk.

Waiting polls are bounded in number and in partitions; one too many is answered with `overloaded`.

What is *not* here: what may be read (`leader.py`), how (`log.py`), followers (`replication_pushes.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from raftlog.config import MAX_FETCH_BYTES, MAX_FETCH_WAIT_MS
from raftlog.errors import NotLeader, RaftlogError, RetriableError
from raftlog.model import Offset, TopicId, TopicPartition
from raftlog.ports import Part, Scheduler, Timer, Worker
from raftlog.wire import AbortedRange, FetchedPartition, FetchPartition

from .aborted_ranges import AbortedRanges
from .driver import PartitionDriver
from .log_slice import LogSlice

MAX_WAITING_POLLS = 10_000
MAX_WAITING_PARTITIONS = 200_000
"""Over all waiting polls: about 100 bytes each."""

SECOND_LOOK_SECONDS = 0.005
"""A poll that wants more than the first byte looks again at most this often."""

FetchDone: TypeAlias = Callable[[list[FetchedPartition], list[Part]], None]


class Cancellable(Protocol):
    """A waiting fetch."""

    def cancel(self) -> None:
        """Nobody waits for it any more: `done` is not called, regions are released. Harmless afterwards."""
        ...


class Replicas(Protocol):
    """Where a poll finds partitions."""

    def driver(self, topic_partition: TopicPartition) -> PartitionDriver | None: ...

    def missing(self, topic_partition: TopicPartition) -> RaftlogError:
        """Why there is no driver here."""
        ...


@dataclass(slots=True)
class PartitionRead:
    """What one partition of a poll gave: batches, or an error, and the marks beside."""

    asked: FetchPartition
    driver: PartitionDriver | None = None
    high_watermark: int = -1
    last_stable_offset: int = -1
    ranges: AbortedRanges | None = None
    """Where only what is committed is read: all aborted ranges below the last stable offset."""
    piece: LogSlice | None = None
    error: RaftlogError | None = None

    def answer(self) -> FetchedPartition:
        asked, driver, error = self.asked, self.driver, self.error
        return FetchedPartition(
            asked.topic_id,
            asked.partition,
            error=error.code if error else "",
            detail=error.detail if error else "",
            high_watermark=self.high_watermark,
            last_stable_offset=self.last_stable_offset,
            log_start_offset=driver.log.log_start_offset if driver and self.high_watermark >= 0 else -1,
            leader_epoch=driver.leader_epoch if driver and self.high_watermark >= 0 else -1,
            length=self.piece.length if self.piece else 0,
            leader=error.leader if isinstance(error, NotLeader) else -1,
            aborted=self._aborted(),
        )

    def _aborted(self) -> list[AbortedRange]:
        """Of the batches that are given."""
        if self.ranges is None or self.piece is None or not self.piece.length:
            return []
        return self.ranges.overlapping(self.piece.first_offset, self.piece.next_offset)


class FetchWaiters:
    """All long polls of a broker."""

    def __init__(self, replicas: Replicas, scheduler: Scheduler, worker: Worker) -> None:
        self.replicas = replicas
        self.scheduler = scheduler
        self.worker = worker
        self._waiting: dict[LongPoll, None] = {}
        self._waiting_partitions = 0

    def fetch(
        self,
        partitions: Sequence[FetchPartition],
        done: FetchDone,
        *,
        min_bytes: int,
        max_bytes: int,
        max_wait_ms: int,
        isolation: int = 0,
    ) -> LongPoll:
        """See `PartitionManager.fetch`. `done` may be called before this returns."""
        poll = LongPoll(self, partitions, done, min_bytes, min(max_bytes, MAX_FETCH_BYTES), committed=isolation == 1)
        poll.begin(min(max_wait_ms, MAX_FETCH_WAIT_MS) / 1000)
        return poll

    def admit(self, poll: LongPoll, partitions: int) -> bool:
        """Whether this poll may wait."""
        if len(self._waiting) >= MAX_WAITING_POLLS or self._waiting_partitions + partitions > MAX_WAITING_PARTITIONS:
            return False
        self._waiting[poll] = None
        self._waiting_partitions += partitions
        return True

    def leave(self, poll: LongPoll, partitions: int) -> None:
        if poll in self._waiting:
            del self._waiting[poll]
            self._waiting_partitions -= partitions

    def close(self) -> None:
        """Every waiting poll is answered with what there is."""
        for poll in list(self._waiting):
            poll.on_deadline()

    def __len__(self) -> int:
        return len(self._waiting)

    def __str__(self) -> str:
        return f"polls={len(self._waiting)} partitions={self._waiting_partitions}"


class LongPoll:
    """One fetch. A `Waiter` of the drivers it waits for."""

    def __init__(
        self,
        owner: FetchWaiters,
        partitions: Sequence[FetchPartition],
        done: FetchDone,
        min_bytes: int,
        max_bytes: int,
        *,
        committed: bool,
    ) -> None:
        """`committed`: nothing else is read."""
        self._owner = owner
        self._committed = committed
        self._partitions = partitions
        self._done: FetchDone | None = done
        self._min_bytes = min_bytes
        self._max_bytes = max_bytes
        self._deadline: Timer | None = None
        self._look_due = False
        self._loading = False

    def begin(self, wait_seconds: float) -> None:
        """The first look."""
        reads, enough = self._read_all()
        if enough or wait_seconds <= 0:
            self._answer(reads)
            return
        self._release(reads)
        if not self._owner.admit(self, len(self._partitions)):
            error = RetriableError("overloaded", "too many fetches wait at this broker")
            self._answer([PartitionRead(asked, error=error) for asked in self._partitions])
            return
        self._deadline = self._owner.scheduler.call_later(wait_seconds, self.on_deadline)
        self._wait(reads)

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        self._done = None
        self._leave()

    def on_readable(self) -> None:
        if self._look_due or self._done is None:
            return
        self._look_due = True
        if self._min_bytes > 1:
            self._owner.scheduler.call_later(SECOND_LOOK_SECONDS, self._look_again)
        else:
            self._owner.scheduler.call_soon(self._look_again)

    def on_deadline(self) -> None:
        """Time is up: what there is, is the answer."""
        if self._done is not None and not self._loading:
            self._answer(self._read_all()[0])

    # --- Inside ---

    def _look_again(self) -> None:
        self._look_due = False
        if self._done is None or self._loading:
            return
        reads, enough = self._read_all()
        if enough:
            self._answer(reads)
        else:
            self._release(reads)
            self._wait(reads)

    def _read_all(self) -> tuple[list[PartitionRead], bool]:
        """Every partition in the order asked, and whether that is an answer."""
        reads: list[PartitionRead] = []
        total, enough = 0, self._min_bytes <= 0
        for asked in self._partitions:
            read = self._read(asked, self._max_bytes - total, first=total == 0)
            reads.append(read)
            if read.error is not None:
                enough = True
            elif read.piece is not None and read.piece.cold:
                # Its bytes are not counted before they are loaded; at most this many come.
                total += min(asked.max_bytes, self._max_bytes - total)
                enough = True
            elif read.piece is not None:
                total += read.piece.length
        return reads, enough or total >= self._min_bytes

    def _read(self, asked: FetchPartition, room: int, *, first: bool) -> PartitionRead:
        tp = TopicPartition(TopicId(asked.topic_id), asked.partition)
        read = PartitionRead(asked, self._owner.replicas.driver(tp))
        driver = read.driver
        try:
            if driver is None:
                raise self._owner.replicas.missing(tp)
            read.high_watermark = end_offset = driver.readable_end(asked.current_leader_epoch)
            if self._committed or not driver.log.producers.stale:
                read.last_stable_offset = driver.last_stable_offset(end_offset)
            if self._committed and asked.offset <= end_offset:
                read.ranges = driver.aborted
                # Who is beyond it already waits there.
                end_offset = Offset(max(read.last_stable_offset, asked.offset))
            room = max(0, min(asked.max_bytes, room))
            read.piece = driver.read(Offset(asked.offset), end_offset, room, min_one_batch=first)
        except RaftlogError as error:
            read.error = error
        return read

    def _wait(self, reads: Sequence[PartitionRead]) -> None:
        for read in reads:
            if read.driver is not None:
                read.driver.wait_readable(self)

    def _leave(self) -> None:
        self._owner.leave(self, len(self._partitions))
        if self._deadline is not None:
            self._deadline.cancel()
        for asked in self._partitions:
            driver = self._owner.replicas.driver(TopicPartition(TopicId(asked.topic_id), asked.partition))
            if driver is not None:
                driver.stop_waiting(self)

    def _answer(self, reads: list[PartitionRead]) -> None:
        """Load what is cold, then call back."""
        cold = [read for read in reads if read.piece is not None and read.piece.cold]
        if not cold:
            self._finish(reads)
            return
        self._loading = True
        missing = len(cold)

        def load(read: PartitionRead, work: Callable[[], LogSlice]) -> None:
            def loaded(piece: LogSlice | None, error: BaseException | None) -> None:
                nonlocal missing
                missing -= 1
                read.piece = piece
                if error is not None and read.driver is not None:
                    read.error = read.driver.on_load_failed(error)
                if not missing:
                    self._finish(reads)

            self._owner.worker.submit(work, loaded)

        for read in cold:
            if read.piece is not None and read.piece.load is not None:
                work, read.piece = read.piece.load, None
                load(read, work)

    def _finish(self, reads: list[PartitionRead]) -> None:
        done = self._done
        self.cancel()
        if done is None:
            self._release(reads)
            return
        parts: list[Part] = [part for read in reads if read.piece is not None for part in read.piece.parts]
        done([read.answer() for read in reads], parts)

    def _release(self, reads: Sequence[PartitionRead]) -> None:
        for read in reads:
            if read.piece is not None:
                read.piece.release()
