"""Idempotent producers of one partition: which sequence comes next, and where the last batches went.

A producer numbers the records that it sends to a partition. Per (producer id, epoch) the log takes them in order,
without gap and once (S1): a batch that was appended before is recognised among the last five and gets its first
offset again, so that a producer with up to five batches in flight can resend all of them.

The state is a function of the log's batch headers and nothing else: every replica keeps it, a new leader goes on with
it, and after a truncation storage rebuilds it from its last snapshot and the headers that are left. `check` asks,
`append` tells; whoever appends a batch tells it first.

    unknown producer, sequence 0            in sequence
    unknown producer, other sequence        unknown: parked for a while, then `unknown_producer_id`
    lower epoch                             `producer_fenced`
    higher epoch, sequence 0                in sequence: the old epoch is over
    same epoch, the next sequence           in sequence
    same epoch, one of the last five        duplicate: first offset
    further ahead (or higher epoch, not 0)  ahead: parked for a while, then `out_of_order_sequence`
    anything else                           `out_of_order_sequence`

A producer with an open transaction is kept beside the others and never forgotten; when its marker is there it is, at
once: the next transaction has another epoch or id and begins at 0, and whatever still comes of this one is refused, or
aborted by another marker. So transactions, each with an id of its own perhaps, never push out who writes without any.

Sources: KIP-98 (idempotence), KIP-360 (unknown producers are refused here, not taken over: a gap could hide in it).
What is *not* here: parking (`leader_parking.py`), what transactions mean (`transaction_state.py`, kept beside this and
in the same snapshots), the snapshot's file (storage).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from raftlog.config import MAX_PRODUCERS_PER_PARTITION
from raftlog.model import NO_PRODUCER_ID, Offset, ProducerEpoch, ProducerId, Sequence
from raftlog.record_batch import BatchHeader, Control

from .transaction_state import TransactionSnapshot, TransactionState

REMEMBERED_BATCHES = 5
"""As Kafka: a producer has at most five batches in flight, so no honest resend is older."""

SEQUENCES = 2**31
"""Sequences count 0 … 2**31 - 1 and begin again at 0."""

SNAPSHOT_VERSION = 2
"""Of version 1, before there were transactions, a snapshot has only its first two fields."""


def sequence_after(sequence: int, count: int = 1) -> Sequence:
    """The sequence `count` records further on."""
    return Sequence((sequence + count) % SEQUENCES)


def last_sequence(header: BatchHeader) -> Sequence:
    """Sequence of the batch's last record."""
    return sequence_after(header.base_sequence, header.last_offset_delta)


class AppendedBatch(NamedTuple):
    """A batch that was appended: what a resend of it must be told."""

    base_sequence: Sequence
    last_sequence: Sequence
    base_offset: Offset
    end_offset: Offset
    max_timestamp: int
    """Milliseconds; the time of its append where the topic stamps that."""


class ProducerEntry(NamedTuple):
    """One producer's generation and its last batches, oldest first. Invariant: 1 to 5 batches, all of this epoch."""

    epoch: ProducerEpoch
    batches: tuple[AppendedBatch, ...]

    @property
    def next_sequence(self) -> Sequence:
        return sequence_after(self.batches[-1].last_sequence)


@dataclass(frozen=True, slots=True)
class InSequence:
    """Append it."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """It is in the log."""

    batch: AppendedBatch


@dataclass(frozen=True, slots=True)
class Ahead:
    """One before it is missing and may still come. `code` is the answer if it does not."""

    code: Literal["out_of_order_sequence", "unknown_producer_id"]
    detail: str


@dataclass(frozen=True, slots=True)
class RefusedSequence:
    """It will never fit."""

    code: Literal["out_of_order_sequence", "producer_fenced", "invalid_request"]
    detail: str


Verdict: TypeAlias = InSequence | Duplicate | Ahead | RefusedSequence

IN_SEQUENCE = InSequence()


class ProducerStates:
    """All idempotent producers of one partition, least recent first, and their transactions.

    Invariant: at most `limit` producers without a transaction; of those the least recently appended is forgotten first.
    """

    def __init__(self, limit: int = MAX_PRODUCERS_PER_PARTITION) -> None:
        self._limit = limit
        self._entries: OrderedDict[ProducerId, ProducerEntry] = OrderedDict()
        self._in_transaction: dict[ProducerId, ProducerEntry] = {}
        self.transactions = TransactionState()

    # --- Asking and telling ---

    def check(self, header: BatchHeader) -> Verdict:
        """What is to be done with a batch that a producer sent. Changes nothing."""
        if header.producer_id == NO_PRODUCER_ID:
            return IN_SEQUENCE
        if header.producer_epoch < 0 or header.base_sequence < 0:
            return RefusedSequence("invalid_request", "a batch with a producer id has a producer epoch and a sequence")
        entry = self.get(ProducerId(header.producer_id))
        who = f"producer {header.producer_id} epoch {header.producer_epoch}"
        if entry is None:
            if header.base_sequence == 0:
                return IN_SEQUENCE
            return Ahead("unknown_producer_id", f"{who} is not known here and begins at {header.base_sequence}, not 0")
        if header.producer_epoch < entry.epoch:
            return RefusedSequence("producer_fenced", f"{who} was fenced by epoch {entry.epoch}")
        if header.producer_epoch > entry.epoch:
            if header.base_sequence == 0:
                return IN_SEQUENCE
            return Ahead("out_of_order_sequence", f"{who} begins at {header.base_sequence}, not 0")
        return _check_sequence(entry, header, who)

    def append(self, header: BatchHeader, control: Control | None = None) -> None:
        """The stamped batch is the next of the log; `control` is what a control batch says. The log is the truth:
        nothing is checked."""
        if control is not None or header.is_transactional:
            for ended in self.transactions.append(header, control):
                self._in_transaction.pop(ended, None)
        if header.producer_id == NO_PRODUCER_ID:
            return
        producer_id, epoch = ProducerId(header.producer_id), ProducerEpoch(header.producer_epoch)
        batch = AppendedBatch(
            Sequence(header.base_sequence),
            last_sequence(header),
            Offset(header.base_offset),
            Offset(header.end_offset),
            header.max_timestamp,
        )
        entry = self._in_transaction.pop(producer_id, None) or self._entries.pop(producer_id, None)
        kept: tuple[AppendedBatch, ...] = ()
        if entry is not None and entry.epoch == epoch and entry.next_sequence == batch.base_sequence:
            kept = entry.batches[1 - REMEMBERED_BATCHES :]
        if self.transactions.has_open(producer_id):
            self._in_transaction[producer_id] = ProducerEntry(epoch, (*kept, batch))
        else:
            self._entries[producer_id] = ProducerEntry(epoch, (*kept, batch))
            while len(self._entries) > self._limit:
                self._entries.popitem(last=False)

    def cut(self, log_start: Offset) -> None:
        """The log begins here now."""
        for ended in self.transactions.cut(log_start):
            self._in_transaction.pop(ended, None)

    # --- As storage wants it (`log.ReplayedState`) ---

    def replay(self, header: BatchHeader, control: Control | None = None) -> None:
        """The next batch of the log, read back."""
        self.append(header, control)

    def restore(self, snapshot: bytes | None) -> None:
        """Forget everything, then begin with this snapshot. Raises `ValueError` where it is none of a known version."""
        self._entries.clear()
        self._in_transaction.clear()
        self.transactions.restore(None)
        if snapshot is None:
            return
        try:
            decoded = _decoder.decode(snapshot)
        except msgspec.MsgspecError as error:
            raise ValueError(f"not a snapshot of producers: {error}") from None
        if not 1 <= decoded.version <= SNAPSHOT_VERSION:
            raise ValueError(f"a snapshot of producers has a version up to {SNAPSHOT_VERSION}, not {decoded.version}")
        self.transactions.restore(decoded.transactions)
        for producer_id, epoch, batches in decoded.producers:
            if not 1 <= len(batches) <= REMEMBERED_BATCHES:
                raise ValueError(f"producer {producer_id} has {len(batches)} batches in a snapshot")
            marks = tuple(
                AppendedBatch(Sequence(first), Sequence(last), Offset(base), Offset(end), timestamp)
                for first, last, base, end, timestamp in batches
            )
            entries = self._in_transaction if self.transactions.has_open(ProducerId(producer_id)) else self._entries
            entries[ProducerId(producer_id)] = ProducerEntry(ProducerEpoch(epoch), marks)

    def empty(self) -> ProducerStates:
        return ProducerStates(self._limit)

    def become(self, other: ProducerStates) -> None:
        self._entries, self._in_transaction = other._entries, other._in_transaction
        self.transactions.become(other.transactions)

    def snapshot(self) -> bytes:
        """The state as bytes that `restore` takes; about 50 bytes a remembered batch, 34 an aborted range."""
        known = [*self._entries.items(), *self._in_transaction.items()]
        producers: list[_Producer] = [(pid, entry.epoch, entry.batches) for pid, entry in known]
        return _encoder.encode(_Snapshot(SNAPSHOT_VERSION, producers, self.transactions.snapshot()))

    # --- Looking ---

    def get(self, producer_id: ProducerId) -> ProducerEntry | None:
        return self._in_transaction.get(producer_id) or self._entries.get(producer_id)

    def __iter__(self) -> Iterator[ProducerId]:
        """Least recent first, then those with open transactions."""
        return chain(self._entries, self._in_transaction)

    def __len__(self) -> int:
        return len(self._entries) + len(self._in_transaction)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ProducerStates):
            return NotImplemented
        return (
            list(self._entries.items()) == list(other._entries.items())
            and self._in_transaction == other._in_transaction
            and self.transactions == other.transactions
        )

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        known = [*self._entries.items(), *self._in_transaction.items()]
        shown = " ".join(f"{pid}:{entry.epoch}@{entry.next_sequence}" for pid, entry in known)
        shown = shown or "no producers"
        return f"{shown} {self.transactions}" if self.transactions.open_count else shown


def _check_sequence(entry: ProducerEntry, header: BatchHeader, who: str) -> Verdict:
    """Of the same epoch: next, remembered, ahead, or too old."""
    expected = entry.next_sequence
    if header.base_sequence == expected:
        return IN_SEQUENCE
    last = last_sequence(header)
    for batch in entry.batches:
        if batch.base_sequence == header.base_sequence and batch.last_sequence == last:
            return Duplicate(batch)
    distance = (header.base_sequence - expected) % SEQUENCES
    detail = f"{who} sent sequences {header.base_sequence} to {last}, expected is {expected}"
    if distance < SEQUENCES // 2:
        return Ahead("out_of_order_sequence", detail)
    return RefusedSequence("out_of_order_sequence", f"{detail}; it is none of the last {len(entry.batches)} batches")


_Batch: TypeAlias = tuple[int, int, int, int, int]
_Producer: TypeAlias = tuple[int, int, tuple[_Batch, ...]]


class _Snapshot(msgspec.Struct, array_like=True, frozen=True):
    version: int
    producers: list[_Producer]
    transactions: TransactionSnapshot | None = None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Snapshot)
