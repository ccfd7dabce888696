"""Long polls: a consumer's fetch over many partitions, answered when there is enough, something failed, or time is up.

    1. Read every partition as far as this reader may see (`fetch_reads.py`). Enough bytes, or an error: answer.
    2. Otherwise let everything go again and wait: for a moved high watermark, without which no last stable offset moves
       (or the end of a leadership), in any of them, or for the deadline. Then read once more.
    3. What is not in memory is loaded by a worker before the answer; the loop never waits for the disk.

Waiting polls are bounded in number and in partitions; one too many is answered with `overloaded`.

What is *not* here: what one partition gives (`fetch_reads.py`), consumers that name only what changed
(`fetch_session.py`), followers (`replication_pushes.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from raftlog.config import MAX_FETCH_BYTES, MAX_FETCH_WAIT_MS
from raftlog.errors import RetriableError
from raftlog.model import TopicId, TopicPartition
from raftlog.ports import Clock, Part, Scheduler, Timer, Worker
from raftlog.wire import FetchedPartition, FetchPartition

from .fetch_reads import PartitionRead, Replicas, load_cold, read_partition
from .fetch_sessions import FetchSessions

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


class FetchWaiters:
    """All long polls of a broker, and beside them its fetch sessions."""

    def __init__(self, replicas: Replicas, clock: Clock, scheduler: Scheduler, worker: Worker) -> None:
        self.sessions = FetchSessions(replicas, clock, scheduler, worker)
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
        self.sessions.close()
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
            room = self._max_bytes - total
            read = read_partition(self._owner.replicas, asked, room, first=total == 0, committed=self._committed)
            reads.append(read)
            if read.error is not None:
                enough = True
            elif read.cold:
                # Its bytes are not counted before they are loaded; at most this many come.
                total += min(asked.max_bytes, self._max_bytes - total)
                enough = True
            elif read.piece is not None:
                total += read.piece.length
        return reads, enough or total >= self._min_bytes

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
        self._loading = any(read.cold for read in reads)
        load_cold(self._owner.worker, reads, lambda: self._finish(reads))

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
            read.release()
