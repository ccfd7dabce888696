"""Decisions about transactions without a quorum, and batches of transactions, for tests of the log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from raftlog.model import Offset, ProducerEpoch, ProducerId, TopicPartition
from raftlog.records.batch import BatchHeader, Control, ControlKind, encode
from raftlog.records.control import ControlEntry
from raftlog.transactions import Outcome, TransactionKey, Verdict

TRANSACTIONAL = 0x10
CONTROL = 0x20


def key(producer_id: int, epoch: int = 0) -> TransactionKey:
    return TransactionKey(ProducerId(producer_id), ProducerEpoch(epoch))


@dataclass
class Decisions:
    """`TransactionVerdicts` that a test decides. Every transaction is known unless it is among the `unknown`."""

    committed: dict[TransactionKey, dict[TopicPartition, int]] = field(default_factory=dict)
    """Transaction → the end offset of each named partition."""
    aborted: set[TransactionKey] = field(default_factory=set)
    marked: set[tuple[TransactionKey, TopicPartition]] = field(default_factory=set)
    """Markers reported by leaders: no commit waits for these any more."""
    unknown: set[TransactionKey] = field(default_factory=set)
    timeout: int = 60_000
    asked: int = 0

    def commit(self, one: TransactionKey, ends: dict[TopicPartition, int]) -> None:
        assert one not in self.aborted
        self.committed[one] = ends

    def abort(self, one: TransactionKey) -> None:
        assert one not in self.committed
        self.aborted.add(one)

    # --- TransactionVerdicts ---

    def verdict(self, one: TransactionKey, topic_partition: TopicPartition) -> Verdict:
        self.asked += 1
        if one in self.aborted:
            return Verdict(Outcome.ABORTED)
        ends = self.committed.get(one)
        if ends is None:
            return Verdict(Outcome.UNDECIDED)
        if topic_partition not in ends:
            return Verdict(Outcome.ABORTED)
        return Verdict(Outcome.COMMITTED, Offset(ends[topic_partition]))

    def unmarked(self, topic_partition: TopicPartition) -> Iterable[TransactionKey]:
        for one, ends in self.committed.items():
            if topic_partition in ends and (one, topic_partition) not in self.marked:
                yield one

    def refusal(self, one: TransactionKey) -> str:
        if one in self.aborted:
            return "transaction_aborted"
        return "transaction_committed" if one in self.committed else ""

    def timeout_ms(self, one: TransactionKey) -> int | None:
        return None if one in self.unknown else self.timeout


def data_header(base: int, one: TransactionKey | None, count: int = 1, *, sequence: int = 0) -> BatchHeader:
    """The header of a stamped batch, with or without a transaction."""
    attributes = TRANSACTIONAL if one else 0
    producer = (one.producer_id, one.producer_epoch, sequence) if one else (-1, -1, -1)
    return BatchHeader(base, 100, 0, 82, 0, attributes, count - 1, 0, 0, *producer, count)


def marker_header(base: int) -> BatchHeader:
    return BatchHeader(base, 100, 0, 82, 0, TRANSACTIONAL | CONTROL, 0, 0, 0, -1, -1, -1, 1)


def says(kind: ControlKind, *entries: tuple[TransactionKey, int]) -> Control:
    """A marker for these transactions, each with its named offset."""
    return Control(1, kind, [ControlEntry(*one, named) for one, named in entries])


def aborts(*keys: TransactionKey) -> Control:
    return says(ControlKind.ABORT, *((one, -1) for one in keys))


def commits(*entries: tuple[TransactionKey, int]) -> Control:
    return says(ControlKind.COMMIT, *entries)


def batch_of(
    one: TransactionKey, *values: bytes, sequence: int = 0, keys: list[bytes] | None = None, timestamp_ms: int = 1_000
) -> bytes:
    """A producer's batch."""
    return encode(
        list(values),
        keys=keys,
        base_timestamp_ms=timestamp_ms,
        producer_id=one.producer_id,
        producer_epoch=one.producer_epoch,
        base_sequence=sequence,
        transactional=True,
    )
