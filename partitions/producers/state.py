"""Idempotent producers of one partition: the next sequence of each, and the offsets of its last batches.

A producer numbers the records that it sends to a partition. Per (producer id, epoch) the log takes them in order,
without gaps and once (S1): a batch that was appended before is recognized among the last five and gets its first offset
again, so that a producer with up to five batches in flight can resend all of them.

The state is derived from the log's batch headers: every replica keeps it, a new leader continues with it, and after a
truncation the log rebuilds it from its last snapshot and the headers that are left. `check` decides about a batch,
`append` records one. The caller calls `append` right after each batch that it appends to the log.

    unknown producer, sequence 0            in sequence, unless it resends a batch of a producer that may be forgotten
    unknown producer, other sequence        unknown: parked for a while, then `unknown_producer_id`
    lower epoch                             `producer_fenced`
    higher epoch, sequence 0                in sequence: the old epoch has ended
    same epoch, the next sequence           in sequence
    same epoch, one of the last five        duplicate: first offset
    further ahead (or higher epoch, not 0)  ahead: parked for a while, then `out_of_order_sequence`
    anything else                           `out_of_order_sequence`

**Forgetting.** A producer expires when it has appended nothing for `producer.id.expiration.ms` of this replica's time
in service (no wall clock is read, and a restart does not shorten the time). The state has a bound in bytes: at the
bound a leader refuses new producers (`overloaded`), because evicting another one that may still resend would be worse.
Only a replica that finds more than twice the bound in its leader's batches evicts the oldest.

So that forgetting never duplicates (S1), the state keeps a *horizon*, `forgotten_up_to`: no producer with a greater id
was ever forgotten here, nor wrote anything that this replica does not have. The quorum assigns ids in rising order. If
a batch of an unknown producer is marked as a resend, it is appended if its id is above the horizon: then its first
attempt is certainly not in the log. Otherwise the outcome is indeterminate, and the answer is `unknown_producer_id`.
Data that a replica has not seen raises the horizon as well: a log copied from its leader's start (`lacks_past`), and
batches that compaction removed (their hole names the greatest id among the producers that have nothing left).

A producer with an open transaction is kept apart from the others and never forgotten; it is forgotten at once when its
marker arrives. The next transaction has another epoch or id and begins at 0, and later batches of this one are refused,
or aborted by another marker. So transactions, each perhaps with an id of its own, never evict producers without
transactions, and neither age nor bounds nor the horizon concern them.

**Keys.** Producer ids that stand for idempotency keys (`raftlog/idempotency.py`) are kept apart, with a bound of their
own: each has one batch. Another batch of the same id has another body, and is refused. They do not concern the horizon,
because they do not count up: a key that has expired is unknown, and may be used again.

Sources: KIP-98 (idempotence), KIP-360 (here unknown producers are refused, not accepted at any sequence: that could
hide a gap).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain
from typing import Annotated, Literal, TypeAlias

import msgspec

from raftlog.config import NodeConfig
from raftlog.idempotency import KEYED_EPOCH, is_keyed
from raftlog.model import EVERY_PRODUCER_ID, NO_PRODUCER_ID, Offset, ProducerEpoch, ProducerId, Sequence
from raftlog.records.batch import BatchHeader, Control
from raftlog.records.batch_filter import is_hole

from .entries import (
    BATCH_BYTES,
    DROPPED_BEYOND,
    PRODUCER_BYTES,
    SEQUENCES,
    AppendedBatch,
    ProducerEntry,
    last_sequence,
)
from .keys import KnownKeys
from .transactions import TransactionSnapshot, TransactionState

REMEMBERED_BATCHES = 5
"""As in Kafka: a producer has at most five batches in flight, so no correct resend is older."""

SNAPSHOT_VERSION = 3
"""The present version of the encoding; older versions lack fields.

Version 1, before transactions, has only the first two. Version 2, before the horizon, has three, and then every unknown
producer may have been forgotten.
"""

FORGOTTEN_AT_ONCE = 1000
"""Bound on the expirations of one event: some hundred microseconds."""


class InSequence(msgspec.Struct, frozen=True):
    """The batch is the next one: append it."""


class Duplicate(msgspec.Struct, frozen=True):
    """The batch is in the log already."""

    batch: AppendedBatch


class Ahead(msgspec.Struct, frozen=True):
    """An earlier batch is missing and may still arrive. `code` is the answer if it does not."""

    code: Literal["out_of_order_sequence", "unknown_producer_id"]
    detail: str


class RefusedSequence(msgspec.Struct, frozen=True):
    """The batch will never fit, or may be in the log already."""

    code: Literal[
        "out_of_order_sequence", "producer_fenced", "invalid_request", "unknown_producer_id", "idempotency_key_reused"
    ]
    detail: str


class NoRoom(msgspec.Struct, frozen=True):
    """The producer is unknown, and all known ones may still resend; a later retry may succeed."""

    detail: str


Verdict: TypeAlias = InSequence | Duplicate | Ahead | RefusedSequence | NoRoom

IN_SEQUENCE = InSequence()


class ProducerBounds(msgspec.Struct, frozen=True):
    """Bounds on the state of one partition's producers."""

    max_bytes: int = NodeConfig().producer_state_bytes
    """Bytes of memory, without the producers with open transactions, which have a bound of their own."""
    expiration_ms: int = NodeConfig().producer_id_expiration_ms


DEFAULT_BOUNDS = ProducerBounds()


class ProducerStates:
    """All idempotent producers of one partition, least recent first, and their transactions.

    Invariant: producers without a transaction take at most `DROPPED_BEYOND` times the bound.
    Invariant: no unknown producer with an id above `forgotten_up_to` has a batch in the log.
    """

    def __init__(self, bounds: ProducerBounds = DEFAULT_BOUNDS) -> None:
        self._bounds = bounds
        self._entries: OrderedDict[ProducerId, ProducerEntry] = OrderedDict()
        self._in_transaction: dict[ProducerId, ProducerEntry] = {}
        self._keys = KnownKeys(bounds.max_bytes)
        self._bytes = 0
        """The bytes of `_entries`."""
        self._service_ms = 0.0
        """The known time in service of this replica, in milliseconds."""
        self._advanced_at: float | None = None
        self._greatest_id = NO_PRODUCER_ID
        self.forgotten_up_to = NO_PRODUCER_ID
        """The horizon: the greatest id that may have been forgotten."""
        self.transactions = TransactionState()

    # --- Checking and appending ---

    def check(self, header: BatchHeader, *, resent: bool = False) -> Verdict:
        """Return the verdict on a producer's batch; changes nothing.

        `resent`: the producer says that an earlier attempt may have been appended.
        """
        if header.producer_id == NO_PRODUCER_ID:
            return IN_SEQUENCE
        if header.producer_epoch < 0 or header.base_sequence < 0:
            return RefusedSequence(
                "invalid_request", "a batch with a producer id needs a producer epoch and a sequence"
            )
        if is_keyed(header.producer_id):
            return self._check_key(header)
        entry = self.get(ProducerId(header.producer_id))
        who = f"producer {header.producer_id} epoch {header.producer_epoch}"
        if entry is not None and header.producer_epoch == entry.epoch:
            return _check_sequence(entry, header, who)
        if entry is not None and header.producer_epoch < entry.epoch:
            return RefusedSequence("producer_fenced", f"{who} was fenced by epoch {entry.epoch}")
        if header.base_sequence != 0:
            if entry is not None:
                return Ahead("out_of_order_sequence", f"{who} begins at {header.base_sequence}, not 0")
            return Ahead("unknown_producer_id", f"{who} is not known here and begins at {header.base_sequence}, not 0")
        if header.is_transactional:
            return IN_SEQUENCE  # Open transactions are never forgotten, and ended ones accept nothing more.
        if resent and self._may_be_forgotten(ProducerId(header.producer_id), entry):
            what = "may have been appended before: producers with ids up to"
            return RefusedSequence(
                "unknown_producer_id", f"the first batch of {who} {what} {self.forgotten_up_to} are forgotten here"
            )
        if entry is None and not self._has_room:
            return NoRoom(
                f"{len(self._entries)} producers have state in this partition, the maximum (producer_state_bytes = "
                f"{self._bounds.max_bytes}): wait until some have written nothing for producer_id_expiration_ms, or "
                "let fewer producers write more"
            )
        return IN_SEQUENCE

    def append(self, header: BatchHeader, control: Control | None = None) -> None:
        """Record a stamped batch as the next of the log; `control` is a control batch's content.

        The log is the truth: nothing is checked.
        """
        if control is not None or header.is_transactional:
            for ended in self.transactions.append(header, control):
                self._in_transaction.pop(ended, None)
        if header.producer_id == NO_PRODUCER_ID:
            return
        producer_id, epoch = ProducerId(header.producer_id), ProducerEpoch(header.producer_epoch)
        if is_hole(header):
            self.lacks_past(producer_id)
            return
        batch = AppendedBatch(
            Sequence(header.base_sequence),
            last_sequence(header),
            Offset(header.base_offset),
            Offset(header.end_offset),
            header.max_timestamp,
        )
        if is_keyed(producer_id):
            self._keys.remember(producer_id, ProducerEntry(epoch, (batch,), int(self._service_ms)))
            return
        self._greatest_id = max(self._greatest_id, producer_id)
        entry = self._in_transaction.pop(producer_id, None) or self._take(producer_id)
        kept: tuple[AppendedBatch, ...] = ()
        if entry is not None and entry.epoch == epoch and entry.next_sequence == batch.base_sequence:
            kept = entry.batches[1 - REMEMBERED_BATCHES :]
        from_first = producer_id > self.forgotten_up_to if entry is None else entry.from_first
        entry = ProducerEntry(epoch, (*kept, batch), int(self._service_ms), from_first)
        if self.transactions.has_open(producer_id):
            self._in_transaction[producer_id] = entry
        else:
            self._remember(producer_id, entry)
            while self._bytes > DROPPED_BEYOND * self._bounds.max_bytes and len(self._entries) > 1:
                self._forget_first()

    def advance(self, now: float) -> None:
        """Let the time in service advance to `now`, in monotonic seconds, and forget expired producers."""
        if self._advanced_at is not None:
            self._service_ms += max(now - self._advanced_at, 0.0) * 1000
        self._advanced_at = now
        self._keys.forget_expired(self._service_ms - self._bounds.expiration_ms, FORGOTTEN_AT_ONCE)
        for _ in range(FORGOTTEN_AT_ONCE):
            if not self._entries:
                return
            oldest = next(iter(self._entries.values()))
            if self._service_ms - oldest.appended_at_ms < self._bounds.expiration_ms:
                return
            self._forget_first()

    def lacks_past(self, greatest_id: ProducerId = EVERY_PRODUCER_ID) -> None:
        """Raise the horizon: producers with ids up to this one may have appended something that is unknown here."""
        self.forgotten_up_to = max(self.forgotten_up_to, greatest_id)

    def cut(self, log_start: Offset) -> None:
        """Record that the log begins at `log_start`."""
        for ended in self.transactions.cut(log_start):
            self._in_transaction.pop(ended, None)

    # --- For the log (`ReplayedState`) ---

    def replay(self, header: BatchHeader, control: Control | None = None) -> None:
        """Record the next batch of the log, read back."""
        self.append(header, control)

    def restore(self, snapshot: bytes | None) -> None:
        """Replace the state by this snapshot's. Raises `ValueError` if it is not of a known version."""
        self.become(self.empty())
        self.forgotten_up_to = NO_PRODUCER_ID
        if snapshot is None:
            return
        try:
            decoded = _decoder.decode(snapshot)
        except msgspec.MsgspecError as error:
            raise ValueError(f"not a snapshot of producers: {error}") from None
        if not 1 <= decoded.version <= SNAPSHOT_VERSION:
            raise ValueError(f"a snapshot of producers has a version up to {SNAPSHOT_VERSION}, not {decoded.version}")
        self.transactions.restore(decoded.transactions)
        for one in decoded.producers:
            producer_id = ProducerId(one.producer_id)
            if not 1 <= len(one.batches) <= REMEMBERED_BATCHES:
                raise ValueError(f"producer {producer_id} has {len(one.batches)} batches in a snapshot")
            marks = tuple(
                AppendedBatch(Sequence(first), Sequence(last), Offset(base), Offset(end), timestamp)
                for first, last, base, end, timestamp in one.batches
            )
            entry = ProducerEntry(ProducerEpoch(one.epoch), marks, one.appended_at_ms, one.from_first)
            if is_keyed(producer_id):
                self._keys.remember(producer_id, entry)
            elif self.transactions.has_open(producer_id):
                self._in_transaction[producer_id] = entry
            else:
                self._take(producer_id)
                self._remember(producer_id, entry)
        self._service_ms = decoded.service_ms
        self._greatest_id = ProducerId(decoded.greatest_id)
        self.forgotten_up_to = ProducerId(decoded.forgotten_up_to)

    def empty(self) -> ProducerStates:
        return ProducerStates(self._bounds)

    def become(self, other: ProducerStates) -> None:
        """Take over another state, with its time in service, to which its producers' ages refer.

        The horizon never falls.
        """
        self._entries = other._entries
        self._in_transaction = other._in_transaction
        self._keys = other._keys
        self._bytes = other._bytes
        self._service_ms = other._service_ms
        self._advanced_at = other._advanced_at
        self._greatest_id = other._greatest_id
        self.forgotten_up_to = max(self.forgotten_up_to, other.forgotten_up_to)
        self.transactions.become(other.transactions)

    def snapshot(self) -> bytes:
        """Encode the state for `restore`; about 25 bytes per batch, 34 per aborted range."""
        known = [*self._entries.items(), *self._in_transaction.items(), *self._keys.items()]
        producers = [(pid, *entry) for pid, entry in known]
        # In the order of `_Snapshot`.
        return _encoder.encode(
            (
                SNAPSHOT_VERSION,
                producers,
                self.transactions.snapshot(),
                int(self._service_ms),
                self._greatest_id,
                self.forgotten_up_to,
            )
        )

    # --- Inspection ---

    def get(self, producer_id: ProducerId) -> ProducerEntry | None:
        if is_keyed(producer_id):
            return self._keys.get(producer_id)
        return self._in_transaction.get(producer_id) or self._entries.get(producer_id)

    @property
    def greatest_id(self) -> ProducerId:
        """The greatest id that may have appended anything to this log."""
        return max(self._greatest_id, self.forgotten_up_to)

    @property
    def size_bytes(self) -> int:
        """Memory of the producers without an open transaction and of the keys, in bytes."""
        return self._bytes + self._keys.size_bytes

    def __iter__(self) -> Iterator[ProducerId]:
        """Iterate least recent first, then over those with open transactions, then over keys."""
        return chain(self._entries, self._in_transaction, (producer_id for producer_id, _ in self._keys.items()))

    def __len__(self) -> int:
        return len(self._entries) + len(self._in_transaction) + len(self._keys)

    def __eq__(self, other: object) -> bool:
        """Whether both remember the same batches. Ages and horizons are each replica's own."""
        if not isinstance(other, ProducerStates):
            return NotImplemented
        return (
            [(pid, entry[:2]) for pid, entry in self._entries.items()]
            == [(pid, entry[:2]) for pid, entry in other._entries.items()]
            and {pid: entry[:2] for pid, entry in self._in_transaction.items()}
            == {pid: entry[:2] for pid, entry in other._in_transaction.items()}
            and [(pid, entry[:2]) for pid, entry in self._keys.items()]
            == [(pid, entry[:2]) for pid, entry in other._keys.items()]
            and self.transactions == other.transactions
        )

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        known = [*self._entries.items(), *self._in_transaction.items(), *self._keys.items()]
        shown = " ".join(f"{pid}:{entry.epoch}@{entry.next_sequence}" for pid, entry in known)
        shown = shown or "no producers"
        return f"{shown} {self.transactions}" if self.transactions.open_count else shown

    # --- Inside ---

    def _may_be_forgotten(self, producer_id: ProducerId, entry: ProducerEntry | None) -> bool:
        return producer_id <= self.forgotten_up_to if entry is None else not entry.from_first

    def _check_key(self, header: BatchHeader) -> Verdict:
        """Return the verdict on the batch of an idempotency key."""
        if header.is_transactional or header.producer_epoch != KEYED_EPOCH:
            return RefusedSequence("invalid_request", "a batch of an idempotency key has epoch 0 and no transaction")
        entry = self._keys.get(ProducerId(header.producer_id))
        if entry is not None:
            (batch,) = entry.batches
            if (batch.base_sequence, batch.last_sequence) == (header.base_sequence, last_sequence(header)):
                return Duplicate(batch)
            return RefusedSequence("idempotency_key_reused", "the key was used before, for another body")
        if not self._keys.has_room(PRODUCER_BYTES + BATCH_BYTES):
            return NoRoom(
                f"{len(self._keys)} idempotency keys have state in this partition, the maximum (producer_state_bytes = "
                f"{self._bounds.max_bytes}): each is kept for producer_id_expiration_ms"
            )
        return IN_SEQUENCE

    @property
    def _has_room(self) -> bool:
        return self._bytes + PRODUCER_BYTES + BATCH_BYTES <= self._bounds.max_bytes

    def _remember(self, producer_id: ProducerId, entry: ProducerEntry) -> None:
        self._entries[producer_id] = entry
        self._bytes += entry.size_bytes

    def _take(self, producer_id: ProducerId) -> ProducerEntry | None:
        entry = self._entries.pop(producer_id, None)
        if entry is not None:
            self._bytes -= entry.size_bytes
        return entry

    def _forget_first(self) -> None:
        """Forget the producer that appended least recently; its resends must not count as new."""
        producer_id = next(iter(self._entries))
        self._take(producer_id)
        self.lacks_past(producer_id)


def _check_sequence(entry: ProducerEntry, header: BatchHeader, who: str) -> Verdict:
    """Return the verdict on a batch of the producer's present epoch."""
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


class _Producer(msgspec.Struct, array_like=True, frozen=True):
    producer_id: int
    epoch: int
    batches: tuple[_Batch, ...]
    appended_at_ms: int = 0
    from_first: bool = False


class _Snapshot(msgspec.Struct, array_like=True, frozen=True):
    """The decoded form; the encoder writes plain tuples, which is quicker."""

    version: int
    producers: list[_Producer]
    transactions: TransactionSnapshot | None = None
    service_ms: Annotated[int, msgspec.Meta(ge=0)] = 0
    greatest_id: int = NO_PRODUCER_ID
    forgotten_up_to: int = EVERY_PRODUCER_ID


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Snapshot)
