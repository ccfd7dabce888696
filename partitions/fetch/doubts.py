"""Positions beyond a high watermark: the quorum confirms the leader before a reader gets that answer.

A deposed leader that does not know it yet may end below what its successor has committed. If it reported to a reader
that the reader's position is not in the log, the reader would start elsewhere: it would skip records or read them again
(S3; KIP-320). So such an answer waits until this broker knows everything that the quorum has decided. If the leader is
confirmed, its answer stands; otherwise it becomes a retriable error, and the reader finds the new leader.

Positions below the log's start need none of this: a start only ever moves up, over committed records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from raftlog.errors import RaftlogError, RetriableError
from raftlog.model import LeaderEpoch
from raftlog.ports import Scheduler, Timer

from .cold_loads import ColdLoads
from .reads import PartitionRead, Replicas, look

PATIENCE_SECONDS = 2.0
"""Bound on the wait, in seconds, because other partitions of the same answer wait as well."""

CatchUp: TypeAlias = Callable[[Callable[[bool], None]], None]
"""Bring this broker's partitions to everything that the quorum has decided, then call back. False: it cannot."""


class _Doubt(msgspec.Struct, eq=False):
    """One answer's doubtful reads, each with the leader epoch in which it was made."""

    reads: list[tuple[PartitionRead, LeaderEpoch]]
    committed: bool
    done: Callable[[], None]


class FetchDoubts:
    """All doubtful answers of a broker.

    One question at a time is with the quorum; answers that arrive meanwhile wait for the next one, which begins after
    them.
    """

    def __init__(self, replicas: Replicas, scheduler: Scheduler, loads: ColdLoads, catch_up: CatchUp) -> None:
        self._replicas = replicas
        self._scheduler = scheduler
        self._loads = loads
        self._catch_up = catch_up
        self._waiting: list[_Doubt] = []
        self._asked: list[_Doubt] = []
        self._question = 0
        """Number of the last question; an answer to an earlier one is ignored."""
        self._patience: Timer | None = None
        self._closed = False

    def complete(self, reads: Sequence[PartitionRead], done: Callable[[], None], *, committed: bool) -> None:
        """Confirm or replace the doubtful answers in these reads, and load what is not in memory; then call `done`.

        `done` is called at once if there is nothing to do.
        """

        def settled() -> None:
            self._loads.complete(reads, done)

        doubted = [(read, read.driver.leader_epoch) for read in reads if read.driver is not None and _is_doubtful(read)]
        if not doubted:
            settled()
            return
        self._waiting.append(_Doubt(doubted, committed, settled))
        if self._closed:
            self._settle_all(caught_up=False)
        elif self._patience is None:
            self._ask()

    def close(self) -> None:
        """Stop confirming, and release all waiting answers."""
        self._closed = True
        self._settle_all(caught_up=False)

    def __len__(self) -> int:
        return len(self._waiting) + len(self._asked)

    # --- Inside ---

    def _ask(self) -> None:
        self._asked, self._waiting = self._waiting, []
        self._question += 1
        question = self._question
        self._patience = self._scheduler.call_later(PATIENCE_SECONDS, lambda: self._on_answer(question, False))
        self._catch_up(lambda caught_up: self._on_answer(question, caught_up))

    def _on_answer(self, question: int, caught_up: bool) -> None:
        if question != self._question or self._patience is None:
            return
        self._patience.cancel()
        self._patience = None
        settled, self._asked = self._asked, []
        if self._waiting and not self._closed:
            self._ask()
        for doubt in settled:
            self._settle(doubt, caught_up)

    def _settle_all(self, *, caught_up: bool) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        settled = self._asked + self._waiting
        self._asked, self._waiting = [], []
        for doubt in settled:
            self._settle(doubt, caught_up)

    def _settle(self, doubt: _Doubt, caught_up: bool) -> None:
        for read, epoch in doubt.reads:
            again, _ = look(self._replicas, read.asked, committed=doubt.committed)
            read.driver = again.driver
            read.high_watermark, read.last_stable_offset = again.high_watermark, again.last_stable_offset
            read.error = again.error or self._told(read, again, epoch, caught_up)
        doubt.done()

    def _told(
        self, read: PartitionRead, again: PartitionRead, epoch: LeaderEpoch, caught_up: bool
    ) -> RaftlogError | None:
        """Return the final error of a doubtful read; `again` is the present state of its partition."""
        if not caught_up:
            return RetriableError("leader_not_available", "the quorum does not confirm this leader now: retry")
        if again.driver is None or again.driver.leader_epoch != epoch:
            return RetriableError("leader_not_available", "the leader changed meanwhile: retry")
        if read.asked.offset <= again.high_watermark:
            return RetriableError("offset_not_available", "the leader has reached this offset meanwhile: retry")
        return read.error


def _is_doubtful(read: PartitionRead) -> bool:
    error = read.error
    return error is not None and error.code == "offset_out_of_range" and read.asked.offset > read.high_watermark
