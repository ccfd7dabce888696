"""The index from a timestamp to an offset at or below its record: sparse, rebuilt when in doubt.

An entry (timestamp, offset) says: no record of the segment below `offset` is later than `timestamp`. Entries are made
together with those of the offset index, so that each names the beginning of a batch. Timestamps are the batches'
largest (`max_timestamp`); they need not rise in the log, so their running maximum is kept.

On disk (envelope of `checkpoint.py`, integers big-endian): i64 base offset, i64 covered end offset, i64 the largest
timestamp of the covered part (-1: none), then all timestamps (i64), then all relative offsets (u32).
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterator

from raftlog.model import Offset

from .checkpoint import DamagedFile, Kind, unwrap, wrap
from .offset_index import big_endian, from_big_endian, rises

NO_TIMESTAMP = -1

_HEAD = struct.Struct(">qqq")
_ENTRY_BYTES = 12


class TimeIndex:
    """The time index of one segment.

    Invariant: offsets rise strictly; timestamps never fall, and none is above `max_timestamp`.
    """

    def __init__(self, base_offset: Offset) -> None:
        self.base_offset = base_offset
        self.end_offset = base_offset
        """The end of the batches that the index covers, which begin at `base_offset`."""
        self.max_timestamp = NO_TIMESTAMP
        """The largest timestamp of all batches that the index covers."""
        self._timestamps = array("q")
        self._offsets = array("I")

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def memory_bytes(self) -> int:
        return _ENTRY_BYTES * len(self._offsets)

    def add(self, end_offset: Offset, max_timestamp: int, *, enter: bool) -> None:
        """Add the next batch, which begins where the covered part ends. `enter`: the offset index made an entry."""
        if enter:
            self._timestamps.append(self.max_timestamp)
            self._offsets.append(self.end_offset - self.base_offset)
        self.end_offset = end_offset
        self.max_timestamp = max(self.max_timestamp, max_timestamp)

    def floor(self, timestamp_ms: int) -> Offset:
        """Return an offset below which every record of the segment is earlier than `timestamp_ms`."""
        index = bisect_left(self._timestamps, timestamp_ms) - 1
        return Offset(self.base_offset + self._offsets[index]) if index >= 0 else self.base_offset

    def entries(self) -> Iterator[tuple[int, Offset]]:
        """Yield every entry."""
        for timestamp, offset in zip(self._timestamps, self._offsets, strict=True):
            yield timestamp, Offset(self.base_offset + offset)

    def truncate(self, end_offset: Offset) -> Offset:
        """Forget the batches from `end_offset` on, and return the end of the part that is still covered.

        That end is the beginning of a batch. The caller adds the batches from there to `end_offset` again, without
        entries.
        """
        keep = bisect_left(self._offsets, end_offset - self.base_offset)
        del self._timestamps[keep:], self._offsets[keep:]
        self.end_offset = Offset(self.base_offset + self._offsets[-1]) if keep else self.base_offset
        self.max_timestamp = self._timestamps[-1] if keep else NO_TIMESTAMP
        return self.end_offset

    def copy(self) -> TimeIndex:
        other = TimeIndex(self.base_offset)
        other.end_offset, other.max_timestamp = self.end_offset, self.max_timestamp
        other._timestamps, other._offsets = self._timestamps[:], self._offsets[:]
        return other

    def encode(self) -> bytes:
        head = _HEAD.pack(self.base_offset, self.end_offset, self.max_timestamp)
        return wrap(Kind.TIME_INDEX, head + big_endian(self._timestamps) + big_endian(self._offsets))

    @classmethod
    def decode(cls, content: bytes) -> TimeIndex:
        """Decode the output of `encode`. Raises `DamagedFile`."""
        payload = unwrap(Kind.TIME_INDEX, content)
        count, rest = divmod(len(payload) - _HEAD.size, _ENTRY_BYTES)
        if count < 0 or rest:
            raise DamagedFile(f"a time index of {len(payload)} bytes")
        base, end, max_timestamp = _HEAD.unpack_from(payload)
        index = cls(Offset(base))
        index.end_offset, index.max_timestamp = Offset(end), max_timestamp
        middle = _HEAD.size + 8 * count
        index._timestamps = from_big_endian("q", payload[_HEAD.size : middle])
        index._offsets = from_big_endian("I", payload[middle:])
        timestamps = [*index._timestamps, max_timestamp]
        if not (
            rises(index._offsets)
            and all(map(int.__le__, timestamps[:-1], timestamps[1:]))
            and (not count or index._offsets[-1] < end - base)
        ):
            raise DamagedFile("the entries of a time index do not rise")
        return index
