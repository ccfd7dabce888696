"""The vocabulary of transactions between partitions, which hold the records, and the quorum, which holds the decisions.

A transaction is identified by (producer id, producer epoch), never by the id alone: the producer's next transaction may
already write while the markers of the previous one are still being appended. The quorum decides a transaction by one
command. Every broker follows the metadata log, so the leader of a partition looks up the outcome of each open
transaction in its own broker's copy (`TransactionVerdicts`), and records it in the partition as a control batch, a
*marker*.

Sources: KIP-98 (markers, the last stable offset), KIP-890 (an epoch for each transaction).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, NamedTuple, Protocol

import msgspec

from .model import Offset, ProducerEpoch, ProducerId, TopicPartition

NO_OFFSET = Offset(-1)
ATTEMPT_BYTES = 16
"""The size of the random id of an initialization, the same in each of its retries."""


class TransactionKey(NamedTuple):
    """The identity of a transaction. In messages and in the metadata log it is an array of two bounded numbers."""

    producer_id: Annotated[ProducerId, msgspec.Meta(ge=0, le=2**62)]
    producer_epoch: Annotated[ProducerEpoch, msgspec.Meta(ge=0, le=2**15 - 1)]


class Outcome(enum.IntEnum):
    """The quorum's decision, as far as this broker knows it."""

    UNDECIDED = 0
    """Undecided, or the decision is not known here yet. The transaction stays open."""
    ABORTED = 1
    COMMITTED = 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision about one transaction's records in one partition.

    `end_offset` applies to a commit: records below it are committed, those at or above it are not. If a commit does not
    (or no longer) name the partition, the outcome there is `ABORTED`.
    """

    outcome: Outcome
    end_offset: Offset = NO_OFFSET


class TransactionVerdicts(Protocol):
    """One broker's copy of the decisions. It may lag behind, and is never wrong about the past."""

    def verdict(self, key: TransactionKey, topic_partition: TopicPartition) -> Verdict:
        """Return the decision about this transaction's records, if the leader finds it open."""
        ...

    def unmarked(self, topic_partition: TopicPartition) -> Iterable[TransactionKey]:
        """Return the commits that name the partition and have no marker reported below its high watermark."""
        ...

    def refusal(self, key: TransactionKey) -> str:
        """Return the code (of `raftlog.errors.CODES`) for refusing more records of the transaction.

        Empty if they are accepted, which includes a transaction that is not known here yet.
        """
        ...

    def timeout_ms(self, key: TransactionKey) -> int | None:
        """Return how long the transaction may stay open, in milliseconds; None if it is not known here."""
        ...
