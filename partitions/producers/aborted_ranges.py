"""The ranges of a log that hold records of aborted transactions, for readers that skip them (S13).

A range (producer id, epoch, first offset, end offset) says that every batch of this transaction that begins in
[first, end) is aborted. Batches of others lie between them, so ranges overlap, and cannot be merged.

Ranges come in the order of the markers that ended them, so ends never fall. Those that concern a reader of [start, end)
are found by bisection at one side. At the other side each range records how far all transactions had ended behind it
(`stable`): no later range begins below that. One transaction that was open for long keeps `stable` low for all that
ended meanwhile; so each block of ranges records the least first offset, and is skipped as a whole.

Columns of plain integers: a range takes 34 bytes, so even a million fit in memory, and into a snapshot by a copy.
(Kafka keeps them in one more file per segment; here that would be one more file to recover, truncate, compact and read
from disk while a consumer waits, to save what an index in memory takes anyway.)
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator

from raftlog.model import Offset, ProducerEpoch, ProducerId
from raftlog.transactions import TransactionKey
from raftlog.wire import AbortedRange

MAX_ABORTED_RANGES = 1_000_000
"""Bound for one partition: 34 MB, two aborted transactions a second for six days.

At the bound a leader begins no more transactions until retention or compaction has removed some.
"""

_BLOCK = 256
"""The number of ranges that are skipped, and dropped, together."""
_TYPES = "qhqqq"


class AbortedRanges:
    """The aborted ranges of one log.

    Invariant: ranges are only ever appended. Dropping some makes another object (`behind`), so a holder of this one may
    keep using it.
    Invariant: `end` and `stable` never fall from one range to the next.
    Invariant: `_least[n]` is the least first offset of block n.
    """

    __slots__ = ("_ends", "_epochs", "_firsts", "_least", "_producers", "_stables")

    def __init__(self) -> None:
        self._producers = array("q")
        self._epochs = array("h")
        self._firsts = array("q")
        self._ends = array("q")
        self._stables = array("q")
        self._least = array("q")

    def append(self, key: TransactionKey, first: Offset, end: Offset, stable: Offset) -> None:
        """Append a range, ended by the marker at `end`; no later range begins below `stable`."""
        self._producers.append(key.producer_id)
        self._epochs.append(key.producer_epoch)
        self._firsts.append(first)
        self._ends.append(end)
        self._note_least(len(self._stables))
        self._stables.append(stable)

    def _note_least(self, index: int) -> None:
        first = self._firsts[index]
        if index % _BLOCK == 0:
            self._least.append(first)
        elif first < self._least[-1]:
            self._least[-1] = first

    def overlapping(self, start: Offset, end: Offset) -> list[AbortedRange]:
        """Return the ranges that overlap [start, end)."""
        return [
            AbortedRange(self._producers[index], self._epochs[index], self._firsts[index], self._ends[index])
            for index in self._that_hold(start, end)
        ]

    def covers(self, key: TransactionKey, base_offset: int) -> bool:
        """Whether this transaction's batch that begins here is aborted."""
        return any(
            self._producers[index] == key.producer_id and self._epochs[index] == key.producer_epoch
            for index in self._that_hold(base_offset, base_offset + 1)
        )

    def _that_hold(self, start: int, end: int) -> Iterator[int]:
        """Yield the indexes of the ranges that overlap [start, end)."""
        index, count = bisect_right(self._ends, start), len(self._stables)
        while index < count:
            if self._least[index // _BLOCK] >= end:
                index = min(count, (index // _BLOCK + 1) * _BLOCK)
                if self._stables[index - 1] >= end:
                    return
                continue
            if self._firsts[index] < end:
                yield index
            if self._stables[index] >= end:
                return
            index += 1

    def behind(self, offset: Offset) -> AbortedRanges:
        """Return the ranges that reach beyond `offset`, perhaps with some more; this object if that is all."""
        first = bisect_right(self._ends, offset)
        if first == len(self):
            return AbortedRanges() if first else self
        return self._from_block(first // _BLOCK) if first >= _BLOCK else self

    def copy(self) -> AbortedRanges:
        """Return a copy for another thread."""
        return self._from_block(0)

    def _from_block(self, number: int) -> AbortedRanges:
        rest = AbortedRanges()
        for name in self.__slots__:
            setattr(rest, name, getattr(self, name)[number if name == "_least" else number * _BLOCK :])
        return rest

    # --- In a snapshot ---

    def encode(self) -> list[bytes]:
        """Encode the columns, little-endian: producer ids (i64), epochs (i16), firsts, ends, stables (i64)."""
        return [_little_endian(column).tobytes() for column in self._columns()]

    @classmethod
    def decode(cls, columns: list[bytes]) -> AbortedRanges:
        """Decode the output of `encode`. Raises `ValueError` for anything else."""
        ranges = cls()
        if len(columns) != len(_TYPES):
            raise ValueError(f"aborted ranges have {len(_TYPES)} columns, not {len(columns)}")
        for column, content in zip(ranges._columns(), columns, strict=True):
            column.frombytes(content)
            if sys.byteorder == "big":
                column.byteswap()
        if len({len(column) for column in ranges._columns()}) > 1:
            raise ValueError("the columns of aborted ranges differ in length")
        firsts = ranges._firsts
        ranges._least.extend(min(firsts[place : place + _BLOCK]) for place in range(0, len(firsts), _BLOCK))
        return ranges

    def _columns(self) -> tuple[array[int], ...]:
        return self._producers, self._epochs, self._firsts, self._ends, self._stables

    # --- Inspection ---

    def __len__(self) -> int:
        return len(self._stables)

    def __iter__(self) -> Iterator[tuple[TransactionKey, int, int]]:
        keys = map(_key, self._producers, self._epochs)
        return zip(keys, self._firsts, self._ends, strict=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AbortedRanges) and self._columns() == other._columns()

    __hash__ = None  # type: ignore[assignment]


def _key(producer_id: int, producer_epoch: int) -> TransactionKey:
    return TransactionKey(ProducerId(producer_id), ProducerEpoch(producer_epoch))


def _little_endian(column: array[int]) -> array[int]:
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column
