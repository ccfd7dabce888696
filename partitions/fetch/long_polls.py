"""Long polls: a consumer's fetch over many partitions, answered on enough bytes, an error, or the deadline.

    1. Read every partition up to its visible end (`reads.py`). If there are enough bytes, or an error, answer.
    2. Otherwise release everything and wait until a high watermark moves (no last stable offset moves without it), a
       leadership ends, or the deadline passes. Then read again.
    3. Before the answer, a position beyond the end is confirmed (`doubts.py`), and a worker loads data that is not in
       memory; the loop never waits for the disk.

A poll may name ten thousand partitions, so reading them, answering and leaving take several turns of the loop. At the
end of each turn the poll starts to wait at the partitions that it has read: if one of them changes while the others are
read, all are read again, unless there was enough without it.

Polls that wait, or take more than a turn, are bounded in number and in partitions; one beyond that gets `overloaded`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeAlias

from raftlog.config import MAX_FETCH_BYTES, MAX_FETCH_WAIT_MS
from raftlog.errors import RetriableError
from raftlog.model import TopicId, TopicPartition
from raftlog.ports import Clock, Part, Scheduler, Timer, Worker, release_regions
from raftlog.slices import in_turns, run
from raftlog.wire import FetchedPartition, FetchPartition

from .cold_loads import ColdLoads
from .doubts import CatchUp, FetchDoubts
from .reads import READS_A_TURN, PartitionRead, Replicas, read_partition
from .sessions import FetchSessions

MAX_WAITING_POLLS = 10_000
MAX_WAITING_PARTITIONS = 200_000
"""Bounds on the polls that are not answered in the turn in which they arrived: some hundred bytes a partition."""

SECOND_LOOK_SECONDS = 0.005
"""The least interval, in seconds, between two reads of a poll that wants more than the first byte."""
ANSWERS_A_TURN = 500
"""Bound on the partitions answered in one turn, some ten microseconds each."""

FetchDone: TypeAlias = Callable[[list[FetchedPartition], list[Part]], None]


class Cancellable(Protocol):
    """A waiting fetch."""

    def cancel(self) -> None:
        """Abandon the fetch: `done` is not called, regions are released. Harmless after the answer."""
        ...


class LongPolls:
    """All long polls of a broker, and its fetch sessions."""

    def __init__(
        self, replicas: Replicas, clock: Clock, scheduler: Scheduler, worker: Worker, catch_up: CatchUp
    ) -> None:
        self.loads = ColdLoads(scheduler, worker)
        self.doubts = FetchDoubts(replicas, scheduler, self.loads, catch_up)
        self.sessions = FetchSessions(replicas, clock, scheduler, self.doubts)
        self._replicas = replicas
        self._scheduler = scheduler
        self._waiting = WaitingPolls()

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
        """Begin a long poll (`PartitionManager.fetch`). `done` may be called before this returns."""
        poll = LongPoll(
            self._replicas,
            self._scheduler,
            self.doubts,
            self._waiting,
            partitions,
            done,
            min_bytes=min_bytes,
            max_bytes=min(max_bytes, MAX_FETCH_BYTES),
            committed=isolation == 1,
        )
        poll.begin(min(max_wait_ms, MAX_FETCH_WAIT_MS) / 1000)
        return poll

    def close(self) -> None:
        """Answer every waiting poll with the available data."""
        self.doubts.close()
        self.loads.close()
        self.sessions.close()
        for poll in list(self._waiting.polls):
            poll.on_deadline()

    def __len__(self) -> int:
        return len(self._waiting.polls)

    def __str__(self) -> str:
        return str(self._waiting)


class WaitingPolls:
    """The polls that were not answered in their first turn, within bounds."""

    def __init__(self) -> None:
        self.polls: dict[LongPoll, int] = {}
        """Each poll with the number of its partitions, in the order of arrival."""
        self._partitions = 0

    def admit(self, poll: LongPoll, partitions: int) -> bool:
        """Whether this poll may stay for longer than a turn; if so, count it."""
        if len(self.polls) >= MAX_WAITING_POLLS or self._partitions + partitions > MAX_WAITING_PARTITIONS:
            return False
        self.polls[poll] = partitions
        self._partitions += partitions
        return True

    def leave(self, poll: LongPoll) -> bool:
        """Stop counting this poll; return whether it was counted."""
        partitions = self.polls.pop(poll, None)
        self._partitions -= partitions or 0
        return partitions is not None

    def __str__(self) -> str:
        return f"polls={len(self.polls)} partitions={self._partitions}"


class LongPoll:
    """One fetch. A `Waiter` of the drivers it waits for."""

    def __init__(
        self,
        replicas: Replicas,
        scheduler: Scheduler,
        doubts: FetchDoubts,
        waiting: WaitingPolls,
        partitions: Sequence[FetchPartition],
        done: FetchDone,
        *,
        min_bytes: int,
        max_bytes: int,
        committed: bool,
    ) -> None:
        """`committed`: the poll reads committed records only."""
        self._replicas = replicas
        self._scheduler = scheduler
        self._doubts = doubts
        self._waiting = waiting
        self._committed = committed
        self._partitions = partitions
        self._done: FetchDone | None = done
        self._min_bytes = min_bytes
        self._max_bytes = max_bytes
        self._wait_seconds = 0.0
        self._deadline: Timer | None = None
        self._stays = False
        """Whether the poll is counted among those that are not answered at once."""
        self._over = False
        """Whether the deadline has passed: the next read is answered with the available data."""
        self._looking = False
        """Whether its partitions are being read."""
        self._look_again = False
        """Whether a partition that was read already has changed."""
        self._look_due = False
        self._answering = False

    def begin(self, wait_seconds: float) -> None:
        """Start the first read."""
        self._wait_seconds = wait_seconds
        self._over = wait_seconds <= 0
        self._run(self._look())

    def cancel(self) -> None:
        """Abandon the poll."""
        self._done = None
        if self._deadline is not None:
            self._deadline.cancel()
        if self._waiting.leave(self):
            in_turns(self._scheduler, self._partitions, self._stop_waiting)

    def on_readable(self) -> None:
        if self._looking:
            self._look_again = True
            return
        if self._look_due or self._done is None:
            return
        self._look_due = True
        if self._min_bytes > 1:
            self._scheduler.call_later(SECOND_LOOK_SECONDS, self._on_look_due)
        else:
            self._scheduler.call_soon(self._on_look_due)

    def on_deadline(self) -> None:
        """Answer with the available data."""
        self._over = True
        self._begin_look()

    # --- Inside ---

    def _on_look_due(self) -> None:
        self._look_due = False
        self._begin_look()

    def _begin_look(self) -> None:
        if self._done is not None and not self._looking and not self._answering:
            self._run(self._look())

    def _run(self, steps: Iterator[None]) -> None:
        run(self._scheduler, steps, self._fail)

    def _fail(self, error: Exception) -> None:
        """Answer with an error; the loop reports the exception, which is unforeseen."""
        done = self._done
        self.cancel()
        if done is not None:
            told = RetriableError("offset_not_available", f"an unforeseen error: {error!r}")
            done([PartitionRead(asked, error=told).answer() for asked in self._partitions], [])

    def _look(self) -> Iterator[None]:
        """Read every partition in the requested order; then answer, or wait."""
        self._looking, self._look_again = True, False
        reads: list[PartitionRead] = []
        total, enough = 0, self._min_bytes <= 0
        work = waiting = 0
        for asked in self._partitions:
            if work >= READS_A_TURN:
                if not self._stay(reads[waiting:]):
                    self._overload(reads)
                    return
                work, waiting = 0, len(reads)
                yield
                if self._done is None:
                    self._release(reads)
                    return
            room = self._max_bytes - total
            try:
                read = read_partition(self._replicas, asked, room, first=total == 0, committed=self._committed)
            except Exception:
                self._release(reads)
                raise
            reads.append(read)
            work += read.work
            if read.error is not None:
                enough = True
            elif read.cold:
                # Bytes are counted when they are loaded; at most this many come.
                total += min(asked.max_bytes, self._max_bytes - total)
                enough = True
            elif read.piece is not None:
                total += read.piece.length
        if enough or self._over or total >= self._min_bytes:
            self._answer(reads)
        elif not self._stay(reads[waiting:]):
            self._overload(reads)
        else:
            self._release(reads)
            self._looking = False
            if self._look_again:
                self.on_readable()

    def _stay(self, reads: Sequence[PartitionRead]) -> bool:
        """Wait at the partitions read in this turn, to answer in a later one. Return False if there is no room."""
        if not self._stays:
            if not self._waiting.admit(self, len(self._partitions)):
                return False
            self._stays = True
            if not self._over:
                self._deadline = self._scheduler.call_later(self._wait_seconds, self.on_deadline)
        if not self._over:
            for read in reads:
                if read.driver is not None:
                    read.driver.wait_readable(self)
        return True

    def _stop_waiting(self, asked: FetchPartition) -> None:
        driver = self._replicas.driver(TopicPartition(TopicId(asked.topic_id), asked.partition))
        if driver is not None:
            driver.stop_waiting(self)

    def _overload(self, reads: Sequence[PartitionRead]) -> None:
        self._release(reads)
        error = RetriableError("overloaded", "too many fetches are waiting at this broker")
        self._looking, self._answering = False, True
        self._run(self._assemble(PartitionRead(asked, error=error) for asked in self._partitions))

    def _answer(self, reads: Sequence[PartitionRead]) -> None:
        """Settle doubtful answers, load what is cold, then call back."""
        self._looking, self._answering = False, True
        self._doubts.complete(reads, lambda: self._run(self._assemble(reads)), committed=self._committed)

    def _assemble(self, reads: Iterable[PartitionRead]) -> Iterator[None]:
        answers: list[FetchedPartition] = []
        parts: list[Part] = []
        for read in reads:
            if answers and not len(answers) % ANSWERS_A_TURN:
                yield
            answers.append(read.answer())
            if read.piece is not None:
                parts += read.piece.parts
        done = self._done
        self.cancel()
        if done is not None:
            done(answers, parts)
        else:
            release_regions(parts)

    def _release(self, reads: Sequence[PartitionRead]) -> None:
        in_turns(self._scheduler, reads, PartitionRead.release)
