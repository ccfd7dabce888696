"""The transactions of one partition, as one replica's own log shows them: open ones, and ranges of aborted records.

    offset   0      1      2      3       4        5      6
             A      B      A      .    commit A    B      B           A, B: batches of two transactions
                                       up to 3                        B is open since 1, until a marker names it

A batch of a transaction opens it in the partition; a marker (a control batch) that names it ends it. An abort aborts
all of it; a commit aborts the part at or above the offset that it names (R4: a delayed write cannot join the commit).
Later batches open it again, and another marker will end it. Transactions are identified by (producer id, epoch), never
by the id alone, because the next transaction of a producer may write before the marker of its last one arrives.

Everything here is a function of the log up to its end. Readers may know less: a marker at or above the high watermark
may be lost with its leader. So a transaction counts as open until its marker is *below* the high watermark, and the
**last stable offset** is the first offset that is open in that sense, at most the high watermark. Below it the fate of
every record is final (S13), and all aborted ranges are known.

Sources: KIP-98 (the last stable offset), KIP-890 (an epoch a transaction), `AbortedTxn` of Kafka's index.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence

import msgspec

from raftlog.model import Offset, ProducerEpoch, ProducerId
from raftlog.records.batch import BatchHeader, Control, ControlKind
from raftlog.transactions import TransactionKey

from .aborted_ranges import AbortedRanges

ENDED_MAX = 10_000
"""Bound on the transactions whose markers may be above the high watermark.

Of more, the oldest are merged, which makes the last stable offset too low for a moment, and never too high.
"""


class OpenTransaction(msgspec.Struct):
    """A transaction that is open. Invariant: `first_offset < end_offset`."""

    first_offset: Offset
    end_offset: Offset
    """The end of its last batch."""


class TransactionState:
    """The transactions of one partition.

    Every appended batch is passed in, in order, right after its append.

    Invariant: open transactions are in the order of their first offsets.
    Invariant: in `_ended` markers and first offsets both rise.
    """

    def __init__(self) -> None:
        self._open: OrderedDict[TransactionKey, OpenTransaction] = OrderedDict()
        self._open_of: dict[ProducerId, int] = {}
        """Producer id → its number of open transactions."""
        self._ended: deque[tuple[Offset, Offset]] = deque()
        """(marker, first offset) of ended transactions, reduced to the least first offset behind each marker."""
        self.aborted = AbortedRanges()
        """Aborted ranges below the log's end; those sent to readers lie below the last stable offset."""

    # --- The log ---

    def append(self, header: BatchHeader, control: Control | None) -> list[ProducerId]:
        """Record the next batch (`control`: its content); return the producers without open transactions now."""
        if control is not None:
            return self._end(control, Offset(header.base_offset))
        if header.is_transactional and not header.is_control:
            self._extend(header)
        return []

    def _extend(self, header: BatchHeader) -> None:
        key = key_of(header)
        found = self._open.get(key)
        if found is None:
            self._open[key] = OpenTransaction(Offset(header.base_offset), Offset(header.end_offset))
            self._open_of[key.producer_id] = self._open_of.get(key.producer_id, 0) + 1
        else:
            found.end_offset = Offset(header.end_offset)

    def _end(self, control: Control, marker: Offset) -> list[ProducerId]:
        if control.kind not in {ControlKind.ABORT, ControlKind.COMMIT}:
            return []  # Other control batches say nothing about the transactions that they name.
        released = []
        for key, entry in zip(keys_of(control), control.entries, strict=True):
            found = self._open.pop(key, None)
            if found is None:
                continue
            if self._one_less_of(key.producer_id):
                released.append(key.producer_id)
            self._note_ended(marker, found.first_offset)
            first = found.first_offset
            if control.kind == ControlKind.COMMIT:
                first = Offset(max(first, entry.named_offset))
            if first < found.end_offset:
                stable = self.first_open_offset
                self.aborted.append(key, first, marker, Offset(marker + 1) if stable is None else stable)
        return released

    def _one_less_of(self, producer_id: ProducerId) -> bool:
        """Count one open transaction less; return whether it was the producer's last."""
        left = self._open_of.pop(producer_id) - 1
        if left:
            self._open_of[producer_id] = left
        return not left

    def _note_ended(self, marker: Offset, first: Offset) -> None:
        while self._ended and self._ended[-1][1] >= first:
            self._ended.pop()
        self._ended.append((marker, first))
        if len(self._ended) > ENDED_MAX:
            _, lower = self._ended.popleft()
            later, _ = self._ended.popleft()
            self._ended.appendleft((later, lower))

    # --- Visibility to readers ---

    def last_stable_offset(self, high_watermark: Offset) -> Offset:
        """Return the offset below which nothing is open for a reader that sees the log up to this high watermark.

        Forgets what ended below it, because an exposed high watermark never falls.
        """
        self.settle(high_watermark)
        bounds = [high_watermark]
        if self._open:
            bounds.append(next(iter(self._open.values())).first_offset)
        if self._ended:
            bounds.append(self._ended[0][1])
        return min(bounds)

    def settle(self, high_watermark: Offset) -> None:
        """Forget the markers below the high watermark, which are final."""
        while self._ended and self._ended[0][0] < high_watermark:
            self._ended.popleft()

    # --- Open transactions at the log's end ---

    @property
    def open_count(self) -> int:
        return len(self._open)

    @property
    def first_open_offset(self) -> Offset | None:
        return next(iter(self._open.values())).first_offset if self._open else None

    def is_open(self, key: TransactionKey) -> bool:
        return key in self._open

    def has_open(self, producer_id: ProducerId) -> bool:
        """Whether any transaction of this producer is open."""
        return producer_id in self._open_of

    def open_keys(self) -> Iterator[TransactionKey]:
        """Iterate over the open transactions, oldest first."""
        return iter(self._open)

    def open_items(self) -> Iterator[tuple[TransactionKey, Offset]]:
        """Iterate over the open transactions with their first offsets, oldest first."""
        return ((key, one.first_offset) for key, one in self._open.items())

    # --- A shorter log ---

    def cut(self, log_start: Offset) -> list[ProducerId]:
        """Record that the log begins at `log_start`: everything wholly below is dropped.

        Returns the producers that have no open transaction any more.
        """
        self.aborted = self.aborted.behind(log_start)
        released = []
        kept = []
        while (first := self.first_open_offset) is not None and first < log_start:
            # At a follower only: a leader's log never begins above its last stable offset.
            key, found = self._open.popitem(last=False)
            if found.end_offset > log_start:
                found.first_offset = log_start
                kept.append((key, found))
            elif self._one_less_of(key.producer_id):
                released.append(key.producer_id)
        for key, found in reversed(kept):
            self._open[key] = found
            self._open.move_to_end(key, last=False)
        return released

    def forget_compacted(self, end: Offset) -> None:
        """Drop the ranges below `end`: compaction has removed every aborted record there."""
        self.aborted = self.aborted.behind(end)

    # --- In a snapshot ---

    def snapshot(self) -> TransactionSnapshot:
        opened = [(pid, epoch, one.first_offset, one.end_offset) for (pid, epoch), one in self._open.items()]
        return TransactionSnapshot(opened, tuple(self._ended), self.aborted.encode())

    def restore(self, snapshot: TransactionSnapshot | None) -> None:
        """Replace the state by this snapshot's. Raises `ValueError` for anything but the output of `snapshot`."""
        self.become(TransactionState())
        if snapshot is None:
            return
        self.aborted = AbortedRanges.decode(snapshot.aborted)
        self._ended.extend((Offset(marker), Offset(first)) for marker, first in snapshot.ended)
        for producer_id, epoch, first, end in snapshot.opened:
            key = TransactionKey(ProducerId(producer_id), ProducerEpoch(epoch))
            self._open[key] = OpenTransaction(Offset(first), Offset(end))
            self._open_of[key.producer_id] = self._open_of.get(key.producer_id, 0) + 1

    def become(self, other: TransactionState) -> None:
        """Take over the state of another object, which must not be used afterwards."""
        self._open = other._open
        self._open_of = other._open_of
        self._ended = other._ended
        self.aborted = other.aborted

    def __eq__(self, other: object) -> bool:
        """Whether both describe the same log. Ended transactions do not count: they are forgotten sooner or later."""
        if not isinstance(other, TransactionState):
            return NotImplemented
        return list(self._open.items()) == list(other._open.items()) and self.aborted == other.aborted

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        shown = [f"{pid}:{epoch}@{one.first_offset}" for (pid, epoch), one in self._open.items()]
        return "open " + (" ".join(shown) or "none") + (f" aborted={len(self.aborted)}" if len(self.aborted) else "")


def key_of(header: BatchHeader) -> TransactionKey:
    """Return the key of this batch's transaction."""
    return TransactionKey(ProducerId(header.producer_id), ProducerEpoch(header.producer_epoch))


def keys_of(control: Control) -> list[TransactionKey]:
    """Return the transactions that a control batch names, in its order."""
    return [
        TransactionKey(ProducerId(entry.producer_id), ProducerEpoch(entry.producer_epoch)) for entry in control.entries
    ]


class TransactionSnapshot(msgspec.Struct, array_like=True, frozen=True):
    """A `TransactionState` as plain values."""

    opened: Sequence[tuple[int, int, int, int]]
    """(producer id, epoch, first offset, end offset) in the order of first offsets."""
    ended: Sequence[tuple[int, int]]
    """(marker, first offset) pairs."""
    aborted: list[bytes]
    """The output of `AbortedRanges.encode`."""
