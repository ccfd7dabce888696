"""Transactions, as those who hold records and those who hold decisions speak of them to each other.

A transaction is named by (producer id, producer epoch): never by the id alone, because the next transaction of the same
producer may already write while the last one's markers are still under way. The quorum decides it by one command; every
broker follows the metadata log, so the leader of a partition *asks its own copy* (`TransactionVerdicts`) what became of
whatever it finds open in its log, and writes that down in the partition as a control batch, a *marker*.

Sources: KIP-98 (markers, the last stable offset), KIP-890 (an epoch for each transaction).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from .model import Offset, ProducerEpoch, ProducerId, TopicPartition

NO_OFFSET = Offset(-1)


class TransactionKey(NamedTuple):
    """Which transaction."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch


class Outcome(enum.IntEnum):
    """What the quorum has decided, as far as whoever is asked has heard."""

    UNDECIDED = 0
    """Or not heard of yet: it stays open."""
    ABORTED = 1
    COMMITTED = 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """What holds for one transaction's records in one partition. `end_offset`, where it is committed: its records below
    are in, those at or above are not; a commit that does not name the partition (any more) is `ABORTED` there."""

    outcome: Outcome
    end_offset: Offset = NO_OFFSET


class TransactionVerdicts(Protocol):
    """One broker's copy of the decisions. It may be behind, and is never wrong about the past."""

    def verdict(self, key: TransactionKey, topic_partition: TopicPartition) -> Verdict:
        """What a leader makes of records of this transaction that it finds open."""
        ...

    def unmarked(self, topic_partition: TopicPartition) -> Iterable[TransactionKey]:
        """Commits that name the partition, and whose marker nobody has reported below its high watermark."""
        ...

    def refusal(self, key: TransactionKey) -> str:
        """A code of `raftlog.errors.CODES` where no more records of the transaction are taken; empty where they are,
        also for what is not known here yet."""
        ...

    def timeout_ms(self, key: TransactionKey) -> int | None:
        """How long it may stay open; None where the transaction is not known here."""
        ...
