"""Loads of data that is not in memory, and the memory that they may take.

What a worker has loaded for an answer is held until all of the answer is loaded, and is then the carrier's, which has
bounds of its own for what peers do not read. So the answers whose loads have begun reserve the bytes that may come
(`MAX_LOADED_BYTES`), all of an answer at once: if two answers held a part each and waited for the rest, neither would
end. Further answers wait in their order, and are refused as `overloaded` beyond `MAX_WAITING`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from partitions.log.slice import LogSlice
from raftlog.config import MIB
from raftlog.errors import RaftlogError, RetriableError
from raftlog.ports import Scheduler, Worker
from raftlog.slices import in_turns

from .reads import PartitionRead

MAX_LOADED_BYTES = 64 * MIB
"""Bytes that the loads in progress may bring; an answer that needs more is loaded alone."""
MAX_WAITING = 10_000
"""Answers that wait for others' loads."""


class _Answer(msgspec.Struct, eq=False):
    """An answer with cold reads."""

    cold: list[PartitionRead]
    nbytes: int
    """The bytes that may come."""
    done: Callable[[], None]


class ColdLoads:
    """All loads of a broker for consumers.

    Invariant: `reserved` is the sum of the bytes of the answers in progress; answers wait only while there are some.
    """

    def __init__(self, scheduler: Scheduler, worker: Worker) -> None:
        self._scheduler = scheduler
        self._worker = worker
        self._waiting: deque[_Answer] = deque()
        self._in_progress = 0
        self.reserved = 0

    def __len__(self) -> int:
        """Return the number of answers that wait for others."""
        return len(self._waiting)

    def complete(self, reads: Sequence[PartitionRead], done: Callable[[], None]) -> None:
        """Let a worker load what is cold, each read on its own; then call `done`, at once if nothing is cold."""
        cold = [read for read in reads if read.cold]
        if not cold:
            done()
            return
        answer = _Answer(cold, sum(read.most_bytes for read in cold), done)
        if not self._waiting and self._has_room(answer):
            self._begin(answer)
        elif len(self._waiting) < MAX_WAITING:
            self._waiting.append(answer)
        else:
            _refuse(answer, RetriableError("overloaded", "too many fetches wait for data from the disk: retry later"))

    def close(self) -> None:
        """Refuse the answers that wait."""
        waiting, self._waiting = self._waiting, deque()
        for answer in waiting:
            _refuse(answer, RetriableError("leader_not_available", "this broker is stopping: retry"))

    def _has_room(self, answer: _Answer) -> bool:
        return not self._in_progress or self.reserved + answer.nbytes <= MAX_LOADED_BYTES

    def _begin(self, answer: _Answer) -> None:
        self._in_progress += 1
        self.reserved += answer.nbytes
        missing = len(answer.cold)

        def load(read: PartitionRead) -> None:
            assert read.piece is not None and read.piece.load is not None
            work, read.piece = read.piece.load, None

            def loaded(piece: LogSlice | None, error: BaseException | None) -> None:
                nonlocal missing
                missing -= 1
                read.piece = piece
                if piece is not None and read.driver is not None:
                    read.driver.traffic.fetched_bytes += piece.length
                if error is not None and read.driver is not None:
                    read.error = read.driver.on_load_failed(error)
                if not missing:
                    self._end(answer)

            try:
                self._worker.submit(work, loaded)
            except Exception as error:  # noqa: BLE001  as if the worker had met it
                loaded(None, error)

        in_turns(self._scheduler, answer.cold, load)

    def _end(self, answer: _Answer) -> None:
        try:
            answer.done()
        finally:
            self._in_progress -= 1
            self.reserved -= answer.nbytes
            while self._waiting and self._has_room(self._waiting[0]):
                self._begin(self._waiting.popleft())


def _refuse(answer: _Answer, error: RaftlogError) -> None:
    for read in answer.cold:
        read.piece, read.error = None, error
    answer.done()
