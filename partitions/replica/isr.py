"""The in-sync replicas as their leader may count on them, and the high watermark that follows.

The quorum decides the ISR; a leader proposes. While the fate of a proposal is not known the ISR may be the old one or
the new one, so the leader counts on both: the *maximal* ISR is what was accepted united with all that may have been
accepted since. The high watermark is what every member of the maximal ISR has on disk, and it stands still while
fewer than `min.insync.replicas` members are *accepted* (a pending member does not count: it may be refused).

    1. B0 leads, ISR {0,1,2}. It proposes {0,2}, and counts B1 until that is accepted.
    2. The answer is lost. The proposal stays possible: no time that passes makes it impossible.
    3. Proposals compare-and-set the partition epoch, so at most one of those made at one epoch is accepted. B0 proposes
       again (perhaps {0,1,2} itself, to settle the matter) and counts everybody named in either.
    4. A record with a higher partition epoch arrives: it tells which was accepted, the others are impossible now.

A refusal makes a proposal impossible only if every attempt at it was refused.

Sources: KIP-497 (AlterPartition), KIP-966 (the floor below which the high watermark does not advance).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from raftlog.errors import InvariantViolation
from raftlog.model import BrokerId, Offset, PartitionEpoch, PartitionRecord

from .effects import Fate

Members: TypeAlias = tuple[BrokerId, ...]
"""Sorted, each once."""


def members(brokers: Iterable[BrokerId]) -> Members:
    """Sorted, each once."""
    return tuple(sorted(set(brokers)))


def maximal_isr(accepted: Members, possible: Iterable[Members]) -> Members:
    """Everybody who is, or may be by now, in the ISR."""
    return members(broker for isr in (accepted, *possible) for broker in isr)


def replicated_end_offset(isr: Members, stable_end: Callable[[BrokerId], Offset | None]) -> Offset | None:
    """Up to where every member has the log on disk; None where one of them is not known to have anything."""
    least: Offset | None = None
    for broker in isr:
        end = stable_end(broker)
        if end is None:
            return None
        if least is None or end < least:
            least = end
    return least


@dataclass(slots=True)
class IsrState:
    """The accepted ISR of a leader's epoch, and the proposals whose fate is open.

    Invariant: `accepted` is not empty; no two attempts are in flight at once.
    Invariant: with no open proposal the maximal ISR is the accepted one.
    """

    accepted: Members
    partition_epoch: PartitionEpoch
    min_insync_replicas: int
    _open: dict[Members, bool] = field(default_factory=dict)
    """Proposals made at this partition epoch that may be accepted → whether an attempt's outcome is unknown."""
    _in_flight: tuple[int, Members] | None = None
    _decided: bool = False
    """An attempt was accepted; its record is on the way and nothing more can be proposed before."""
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
        """Too few accepted members for `acks=all`, and for the high watermark to advance."""
        return len(self.accepted) < self.min_insync_replicas

    @property
    def unsettled(self) -> bool:
        """A proposal may have been accepted or not, and nobody will say: something has to be proposed again."""
        return bool(self._open) and self._in_flight is None and not self._decided

    def may_propose(self, now: float) -> bool:
        return self._in_flight is None and not self._decided and now >= self._not_before

    def propose(self, isr: Members) -> int:
        """Another attempt, one at a time; returns its number."""
        if self._in_flight is not None or self._decided or not isr:
            raise InvariantViolation(f"ISR {isr} proposed while {self}")
        self._attempts += 1
        self._in_flight = (self._attempts, isr)
        self._open.setdefault(isr, False)
        return self._attempts

    def on_answer(self, attempt: int, fate: Fate, retry_at: float) -> None:
        """The fate of an attempt; that of one made at an earlier partition epoch no longer matters.

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
        """The quorum's word, of a higher partition epoch: every proposal made before is accepted in it or void."""
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
