"""Opening and closing replicas: a few run as separate jobs of the worker, many run together
(`partitions/files/durable.py`).

The requests of one turn of the loop, and those that arrive during a round, make the next round. One round runs at a
time, so that cold reads and other work of the same threads do not queue behind thousands of replicas.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

from partitions.files.durable import TOGETHER_MAX, Steps, alone, together, worth_one_call
from raftlog.ports import Disk, Scheduler, Worker
from raftlog.slices import in_turns

RESULTS_PER_TURN = 16
"""Replicas of a round that are reported in one turn: each gets a driver, some hundred microseconds."""

T = TypeVar("T")


class OpenTask(msgspec.Struct, Generic[T], frozen=True):
    """The opening or closing of one replica."""

    steps: Callable[[bool], Steps[T]]
    """Begins the work; True: together with others."""
    shares_syncs: Callable[[], bool]
    """Whether one call of the disk syncs the replica. May block. Raises nothing."""


def run_all(disk: Disk, pieces: Sequence[OpenTask[T]]) -> list[T | Exception]:
    """Run all pieces to their ends, together if they are many, and return their results or errors. Blocks."""
    outcomes: dict[int, T | Exception] = {}
    shared = []
    many = worth_one_call(len(pieces))
    for number, piece in enumerate(pieces):
        if many and piece.shares_syncs():
            shared.append(number)
            continue
        try:
            outcomes[number] = alone(disk, piece.steps(False))
        except Exception as error:  # noqa: BLE001  it is one replica's, and the caller's to judge
            outcomes[number] = error
    outcomes |= zip(shared, together(disk, [pieces[number].steps(True) for number in shared]), strict=True)
    return [outcomes[number] for number in range(len(pieces))]


class BatchedOpener:
    """The rounds of opening and closing.

    Invariant: while nothing is starting or running, nothing waits.
    """

    def __init__(self, disk: Disk, scheduler: Scheduler, worker: Worker) -> None:
        self._disk = disk
        self._scheduler = scheduler
        self._worker = worker
        self._waiting: deque[tuple[OpenTask[Any], Callable[[Any, BaseException | None], None]]] = deque()
        self._starting = self._running = False

    def submit(self, piece: OpenTask[T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Run the piece on a worker; call `done(result, None)` or `done(None, error)` in a later turn."""
        self._waiting.append((piece, done))
        if not self._starting:
            self._starting = True
            self._scheduler.call_soon(self._start)

    def _start(self) -> None:
        self._starting = False
        if not worth_one_call(len(self._waiting)):
            while self._waiting:
                piece, done = self._waiting.popleft()
                self._worker.submit(partial(self._alone, piece), done)
        elif not self._running:
            self._running = True
            some = [self._waiting.popleft() for _ in range(min(len(self._waiting), TOGETHER_MAX))]
            self._worker.submit(lambda: run_all(self._disk, [piece for piece, _ in some]), partial(self._ended, some))

    def _alone(self, piece: OpenTask[T]) -> T:
        return alone(self._disk, piece.steps(False))

    def _ended(
        self,
        some: Sequence[tuple[OpenTask[Any], Callable[[Any, BaseException | None], None]]],
        outcomes: list[Any] | None,
        error: BaseException | None,
    ) -> None:
        self._running = False
        self._start()

        def tell(number: int) -> None:
            _, done = some[number]
            outcome = error if outcomes is None else outcomes[number]
            if isinstance(outcome, BaseException):
                done(None, outcome)
            else:
                done(outcome, None)

        in_turns(self._scheduler, range(len(some)), tell, per_turn=RESULTS_PER_TURN)
