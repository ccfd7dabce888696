"""The in-sync replicas that a leader must count, and the high watermark that follows from them.

The quorum decides the ISR; a leader proposes. While the fate of a proposal is unknown, the ISR may be the old or the
new one, so the leader counts both: the *maximal* ISR is the accepted ISR united with every proposal that may have been
accepted since. The high watermark is what every member of the maximal ISR has on disk, and it stands still while fewer
than `min.insync.replicas` members are *accepted* (a pending member does not count: it may be refused).

    1. B0 leads, ISR {0,1,2}. It proposes {0,2}, and counts B1 until that is accepted.
    2. The answer is lost. The proposal stays possible, however much time passes.
    3. Proposals compare-and-set the partition epoch, so at most one of those made at one epoch is accepted. B0 proposes
       again (perhaps {0,1,2} itself, to settle the matter) and counts every member of either.
    4. A record with a higher partition epoch arrives: it shows which was accepted, and rules out the others.

A refusal rules out a proposal only if every attempt at it was refused.

Sources: KIP-497 (AlterPartition), KIP-966 (the floor below which the high watermark does not advance).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import msgspec

from raftlog.errors import InvariantViolation
from raftlog.model import BrokerId, Offset, PartitionEpoch, PartitionRecord

from .effects import Fate

Members: TypeAlias = tuple[BrokerId, ...]
"""Broker ids, sorted, without duplicates."""


def members(brokers: Iterable[BrokerId]) -> Members:
    """Return the brokers sorted and without duplicates."""
    return tuple(sorted(set(brokers)))


def maximal_isr(accepted: Members, possible: Iterable[Members]) -> Members:
    """Return every broker that is, or may be, in the ISR."""
    return members(broker for isr in (accepted, *possible) for broker in isr)


def replicated_end_offset(isr: Members, stable_end: Callable[[BrokerId], Offset | None]) -> Offset | None:
    """Return the offset up to which every member has the log on disk; None if that is unknown for one of them."""
    least: Offset | None = None
    for broker in isr:
        end = stable_end(broker)
        if end is None:
            return None
        if least is None or end < least:
            least = end
    return least


class IsrState(msgspec.Struct):
    """The accepted ISR of a leader's epoch, and the proposals whose fate is unknown.

    Invariant: `accepted` is not empty; at most one attempt is in flight.
    Invariant: with no open proposal the maximal ISR is the accepted one.
    """

    accepted: Members
    partition_epoch: PartitionEpoch
    min_insync_replicas: int
    _open: dict[Members, bool] = {}
    """Proposals made at this partition epoch that may be accepted → whether an attempt's outcome is unknown."""
    _in_flight: tuple[int, Members] | None = None
    _decided: bool = False
    """An attempt was accepted: its record is on the way, and nothing can be proposed before it."""
    _attempts: int = 0
    _not_before: float = 0.0

    @classmethod
    def of(cls, record: PartitionRecord) -> IsrState:
        return cls(members(record.isr), record.partition_epoch, record.min_insync_replicas)

    @property
    def maximal(self) -> Members:
        return maximal_isr(self.accepted, self._open) if self._open else self.accepted

    @property
    def below_minimum(self) -> bool:
        """Whether the accepted members are too few for `acks=all` and for the high watermark to advance."""
        return len(self.accepted) < self.min_insync_replicas

    @property
    def unsettled(self) -> bool:
        """Whether a proposal may have been accepted and no answer will come: a new proposal has to settle it."""
        return bool(self._open) and self._in_flight is None and not self._decided

    def may_propose(self, now: float) -> bool:
        return self._in_flight is None and not self._decided and now >= self._not_before

    def propose(self, isr: Members) -> int:
        """Begin another attempt, one at a time, and return its number."""
        if self._in_flight is not None or self._decided or not isr:
            raise InvariantViolation(f"ISR {isr} proposed while {self}")
        self._attempts += 1
        self._in_flight = (self._attempts, isr)
        self._open.setdefault(isr, False)
        return self._attempts

    def on_answer(self, attempt: int, fate: Fate, retry_at: float) -> None:
        """Apply the fate of an attempt; ignore attempts of an earlier partition epoch.

        Unless it was accepted, the next attempt is not made before `retry_at`.
        """
        if self._in_flight is None or self._in_flight[0] != attempt:
            return
        isr = self._in_flight[1]
        self._in_flight = None
        if fate is Fate.ACCEPTED:
            self._decided = True
            return
        self._not_before = retry_at
        if fate is Fate.UNKNOWN:
            self._open[isr] = True
        elif not self._open[isr]:
            del self._open[isr]

    def on_record(self, record: PartitionRecord) -> None:
        """Apply a record of a higher partition epoch: every earlier proposal is accepted in it or void."""
        if record.partition_epoch <= self.partition_epoch:
            raise InvariantViolation(f"partition epoch {record.partition_epoch} after {self.partition_epoch}")
        self.accepted = members(record.isr)
        self.partition_epoch = record.partition_epoch
        self.min_insync_replicas = record.min_insync_replicas
        self._open.clear()
        self._in_flight = None
        self._decided = False
        self._not_before = 0.0

    def __str__(self) -> str:
        text = "isr=" + ",".join(map(str, self.accepted))
        for isr in sorted(self._open):
            text += " maybe=" + ",".join(map(str, isr))
        return text + ("!" if self.below_minimum else "")
