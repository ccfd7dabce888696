"""One partition's batches: in order, exactly once, through all failures. A pure core of the sequencer.

Sealed batches are sent in order, up to `MAX_IN_FLIGHT_BATCHES` ahead of the answers. When it is first sent, a batch
gets its *name*: producer id, epoch and the sequence number of its first record. The leader appends a name at most once
and only after its predecessor, and answers a repeated one with the offset of the first. That lets a producer resend a
batch whose outcome it does not know (S1), and rests on three rules kept here:

* **A batch is resent under the same name** as long as any attempt may have been applied (*maybe applied*: its answer
  never arrived, or reported an unknown outcome). Such a resend is marked, so that a leader that has evicted the name,
  or never saw it, reports that it cannot tell.
* **After an error, all later batches are taken back, too**, and sent again in order, once nothing of the partition is
  in flight. An answer to an attempt that was taken back has no effect.
* **A batch that fails permanently breaks the chain of names.** If it was certainly not applied, nothing after it can
  have been, and all of it is sent again under a new producer id. If it may have been applied, so may the batches after
  it that were sent: they fail as `outcome_unknown`, and only batches that were never sent continue, under a new id.
  Batches with different ids are never in flight together, because nothing would keep their order.

Without idempotence there are no names: a failed batch is resent alone, may overtake others, and may be appended twice.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Generic, TypeAlias

from raftlog.errors import CODES, Applied, RaftlogError, RetriableError, error_from_code

from .batch import Batch, D

MAX_IN_FLIGHT_BATCHES = 5
"""Limit of batches in flight in one partition, counted from the oldest unanswered one.

A leader remembers the last five batches of a producer (as Kafka's does), and answers resends of those with their
offsets. So batches behind the oldest count even if they were answered.
"""

SEQUENCE_MODULUS = 2**31


@dataclass(slots=True)
class Delivered(Generic[D]):
    """The batch is acknowledged."""

    batch: Batch[D]
    base_offset: int
    log_append_time_ms: int


@dataclass(slots=True)
class Undelivered(Generic[D]):
    """The batch failed permanently."""

    batch: Batch[D]
    error: RaftlogError


Outcome: TypeAlias = Delivered[D] | Undelivered[D]


@dataclass(slots=True, eq=False)
class PartitionQueue(Generic[D]):
    """The batches in flight, followed by those that are ready.

    Invariant: batches with a name come before those without; those in flight have one producer id and increasing
    sequence numbers.
    """

    topic: str
    partition: int
    idempotent: bool
    in_flight: list[Batch[D]] = field(default_factory=list)
    ready: deque[Batch[D]] = field(default_factory=deque)
    producer_id: int = -1
    """-1: the next batch without a name waits for a new producer id."""
    producer_epoch: int = -1
    next_sequence: int = 0
    launches: int = 0
    """Number of batches that got a name: the number of the next one."""
    rewound: bool = False
    """Whether batches were taken back: nothing is sent until everything in flight is answered."""
    # Fields of the sequencer:
    leader: int = -1
    leader_epoch: int = -1
    failures: int = 0
    not_before: float = 0.0
    last_error: RaftlogError | None = None

    @property
    def backlog(self) -> int:
        """Number of unacknowledged batches."""
        return len(self.in_flight) + len(self.ready)

    @property
    def is_idle(self) -> bool:
        """Whether a batch that arrived now would be sent without waiting behind others."""
        return not self.ready and not self._window_is_full(self.launches)

    def head_may_go(self, now: float) -> bool:
        """Whether the first ready batch may be sent now."""
        if not self.ready or now < self.not_before or (self.rewound and self.in_flight):
            return False
        first = self.ready[0]
        if self._window_is_full(first.number if first.base_sequence >= 0 else self.launches):
            return False
        if not self.idempotent:
            return True
        producer_id = first.producer_id if first.base_sequence >= 0 else self.producer_id
        return producer_id >= 0 and (not self.in_flight or self.in_flight[-1].producer_id == producer_id)

    def launch(self) -> Batch[D]:
        """Move the first ready batch into flight, with a name and the number of this attempt."""
        batch = self.ready.popleft()
        if self.idempotent and batch.base_sequence < 0:
            batch.producer_id, batch.producer_epoch = self.producer_id, self.producer_epoch
            batch.base_sequence = self.next_sequence
            batch.number = self.launches
            self.launches += 1
            self.next_sequence = (self.next_sequence + batch.count) % SEQUENCE_MODULUS
        batch.resent = batch.maybe_applied and self.idempotent
        batch.attempt += 1
        self.rewound = False
        self.in_flight.append(batch)
        return batch

    def _window_is_full(self, number: int) -> bool:
        """Whether the batch with this number would be too far ahead of the oldest unanswered one."""
        if not self.in_flight:
            return False
        too_far = self.idempotent and number >= self.in_flight[0].number + MAX_IN_FLIGHT_BATCHES
        return too_far or len(self.in_flight) >= MAX_IN_FLIGHT_BATCHES

    def awaits(self, batch: Batch[D], attempt: int) -> bool:
        """Whether the answer to this attempt still counts."""
        return batch.attempt == attempt and batch in self.in_flight

    def take_back(self, position: int = 0) -> None:
        """Make the batches in flight from this position on ready again; they may have been applied."""
        for batch in reversed(self.in_flight[position:]):
            batch.maybe_applied = True
            batch.attempt += 1
            self.ready.appendleft(batch)
        del self.in_flight[position:]
        self.rewound = True

    def take_back_lost(self, batch: Batch[D]) -> None:
        """Make a batch whose answer is lost ready again, with the batches after it if they depend on it."""
        position = self.in_flight.index(batch)
        if self.idempotent:
            self.take_back(position)
            return
        batch.maybe_applied = True
        batch.attempt += 1
        del self.in_flight[position]
        self.ready.insert(sum(waiting.attempt > 0 for waiting in self.ready), batch)
        self.rewound = True

    def take_back_refused(self, batch: Batch[D], error: RaftlogError) -> None:
        """Make a refused batch ready again; the error may prove that it was not applied."""
        maybe_applied = batch.maybe_applied or CODES[error.code].applied is Applied.UNKNOWN
        self.take_back_lost(batch)
        batch.maybe_applied = maybe_applied

    def chain_broken(self, batch: Batch[D], error: RaftlogError) -> list[Outcome[D]]:
        """Handle the leader's answer that it knows no predecessor of this batch.

        While a predecessor is in flight, that is expected. Otherwise the leader has lost this producer's state, and
        what was never applied continues under a new name.
        """
        if batch is not self.in_flight[0]:
            self.take_back_refused(batch, error)
            return []
        if batch.maybe_applied:
            lost = f"the leader no longer knows this producer ({error.detail}), and an earlier attempt was not answered"
            return self.fail(batch, RetriableError("outcome_unknown", lost))
        self.take_back()
        self._rename(batch.producer_id)
        return []

    def refuse(self, batch: Batch[D], error: RaftlogError) -> list[Outcome[D]]:
        """Fail a batch because of the leader's answer.

        The answer is about one attempt only: an earlier one, whose answer was lost, may have been applied.
        """
        if CODES[error.code].applied is Applied.UNKNOWN:
            batch.maybe_applied = True
        elif batch.maybe_applied:
            why = f"an earlier attempt was not answered; the last answer was {error}"
            return self.fail(batch, RetriableError("outcome_unknown", why))
        return self.fail(batch, error)

    def fail(self, batch: Batch[D], error: RaftlogError) -> list[Outcome[D]]:
        """Fail a batch permanently. `batch.maybe_applied` decides about the batches after it."""
        outcomes: list[Outcome[D]] = [Undelivered(batch, error)]
        if not self.idempotent or batch.base_sequence < 0:
            self._remove(batch)
            return outcomes
        if batch in self.in_flight:
            position = self.in_flight.index(batch)
            del self.in_flight[position]
            batch.attempt += 1
            self.take_back(position)
            after = list(self.ready)
        else:
            after = list(self.ready)[self.ready.index(batch) + 1 :]
            self.ready.remove(batch)
        if batch.maybe_applied:
            for follower in after:
                if follower.producer_id == batch.producer_id and follower.maybe_applied:
                    self.ready.remove(follower)
                    why = f"an earlier batch, which it depends on, ended with {error.code}"
                    outcomes.append(Undelivered(follower, RetriableError("outcome_unknown", why)))
        self._rename(batch.producer_id)
        return outcomes

    def expire(self, now: float) -> list[Outcome[D]]:
        """Fail the batches whose delivery timeout has passed."""
        outcomes: list[Outcome[D]] = []
        while self.in_flight and self.in_flight[0].expires_at <= now:
            first = self.in_flight[0]
            first.maybe_applied = True
            outcomes += self.fail(first, self._expired(first))
        while not self.in_flight and self.ready and self.ready[0].expires_at <= now:
            first = self.ready[0]
            outcomes += self.fail(first, self._expired(first))
        return outcomes

    def abandon(self, error: RaftlogError) -> list[Outcome[D]]:
        """Fail everything: with this error if certainly not applied, else as `outcome_unknown`."""
        unknown = RetriableError("outcome_unknown", f"an attempt was not answered when sending ended: {error}")
        self.take_back()
        outcomes: list[Outcome[D]] = [
            Undelivered(batch, unknown if batch.maybe_applied else error) for batch in self.ready
        ]
        self.ready.clear()
        return outcomes

    def begin_anew(self) -> None:
        """Start over with a new log: nothing sent to the former one counts."""
        self.take_back()
        for batch in self.ready:
            batch.maybe_applied = False
            batch.producer_id, batch.producer_epoch, batch.base_sequence = -1, -1, -1
        self.producer_id, self.leader, self.leader_epoch = -1, -1, -1

    def check_invariants(self) -> None:
        """Check the invariants, for tests."""
        everything = [*self.in_flight, *self.ready]
        named = [batch for batch in everything if batch.base_sequence >= 0]
        assert everything[: len(named)] == named, str(self)
        assert len(self.in_flight) <= MAX_IN_FLIGHT_BATCHES, str(self)
        assert len({batch.producer_id for batch in self.in_flight}) <= 1, str(self)
        for before, after in pairwise(named):
            if before.producer_id == after.producer_id:
                distance = (after.base_sequence - before.base_sequence) % SEQUENCE_MODULUS
                assert before.count <= distance < SEQUENCE_MODULUS // 2, str(self)

    def __str__(self) -> str:
        return (
            f"{self.topic}/{self.partition} leader={self.leader} epoch={self.leader_epoch} "
            f"in_flight={len(self.in_flight)} ready={len(self.ready)} "
            f"producer={self.producer_id}/{self.producer_epoch} next={self.next_sequence}"
        )

    def _rename(self, producer_id: int) -> None:
        """Remove the names with this producer id from ready batches, which are certainly not in the log."""
        for batch in self.ready:
            if batch.producer_id == producer_id:
                batch.maybe_applied = False
                batch.producer_id, batch.producer_epoch, batch.base_sequence = -1, -1, -1
        if self.producer_id == producer_id:
            self.producer_id = -1

    def _remove(self, batch: Batch[D]) -> None:
        batch.attempt += 1
        if batch in self.in_flight:
            self.in_flight.remove(batch)
        else:
            self.ready.remove(batch)

    def _expired(self, batch: Batch[D]) -> RaftlogError:
        why = "" if self.last_error is None else f"; the last error was {self.last_error}"
        if batch.maybe_applied:
            return RetriableError("outcome_unknown", f"no answer within the delivery timeout{why}")
        code = "leader_not_available" if self.last_error is None else self.last_error.code
        if CODES[code].applied is Applied.UNKNOWN or not CODES[code].retriable:
            code = "leader_not_available"
        return error_from_code(code, f"not sent within the delivery timeout{why}")
