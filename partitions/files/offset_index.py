"""The index from an offset to a position at or before its batch: sparse, relative, rebuilt when in doubt.

An entry (offset, position) says that a batch with this base offset begins at this position of the segment file. There
is at most one entry for every `interval_bytes` of the file. A lookup returns the entry at or before the offset, and the
reader walks the headers from there. The first batch needs no entry. Offsets are relative to the segment's base so that
both numbers fit 32 bits.

On disk (envelope of `checkpoint.py`, integers big-endian): i64 base offset, i64 end offset and i64 bytes of the part of
the segment that the index covers, then all relative offsets (u32), then all positions (u32).
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from raftlog.model import FilePosition, Offset

from .checkpoint import DamagedFile, Kind, unwrap, wrap

MAX_RELATIVE_OFFSET = 2**32 - 1
"""The greatest relative offset; the log rolls before it is exceeded."""

_HEAD = struct.Struct(">qqq")
_ENTRY_BYTES = 8


class OffsetIndex:
    """The offset index of one segment.

    Invariant: offsets and positions both rise strictly, from above (base offset, 0) to below the covered end.
    """

    def __init__(self, base_offset: Offset, interval_bytes: int) -> None:
        self.base_offset = base_offset
        self.end_offset = base_offset
        """The end of the batches that the index covers, which begin at `base_offset`."""
        self.size = 0
        """The bytes of the file that the index covers."""
        self._interval_bytes = interval_bytes
        self._offsets = array("I")
        self._positions = array("I")

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def memory_bytes(self) -> int:
        return _ENTRY_BYTES * len(self._offsets)

    def add(self, end_offset: Offset, length: int) -> bool:
        """Add the next batch, which begins where the covered part ends; return whether it got an entry."""
        last_position = self._positions[-1] if self._positions else 0
        entered = self.size - last_position >= self._interval_bytes and self.size > 0
        if entered:
            self._offsets.append(self.end_offset - self.base_offset)
            self._positions.append(self.size)
        self.end_offset = end_offset
        self.size += length
        return entered

    def floor(self, offset: Offset) -> tuple[Offset, FilePosition]:
        """Return the last entry at or before `offset`; the segment's beginning if there is none."""
        index = bisect_right(self._offsets, max(0, min(offset - self.base_offset, MAX_RELATIVE_OFFSET))) - 1
        if index < 0:
            return self.base_offset, FilePosition(0)
        return Offset(self.base_offset + self._offsets[index]), FilePosition(self._positions[index])

    def after(self, offset: Offset) -> tuple[Offset, FilePosition] | None:
        """Return the first entry beyond `offset`; None if there is none."""
        index = bisect_right(self._offsets, max(0, min(offset - self.base_offset, MAX_RELATIVE_OFFSET)))
        if index == len(self._offsets):
            return None
        return Offset(self.base_offset + self._offsets[index]), FilePosition(self._positions[index])

    def entries(self) -> Iterator[tuple[Offset, FilePosition]]:
        """Yield every entry."""
        for offset, position in zip(self._offsets, self._positions, strict=True):
            yield Offset(self.base_offset + offset), FilePosition(position)

    def truncate(self, end_offset: Offset, size: int) -> None:
        """Shorten the covered part to `end_offset`, a batch's boundary."""
        assert self.base_offset <= end_offset <= self.end_offset, (self.base_offset, end_offset, self.end_offset)
        keep = bisect_left(self._offsets, end_offset - self.base_offset)
        del self._offsets[keep:], self._positions[keep:]
        self.end_offset, self.size = end_offset, size

    def copy(self) -> OffsetIndex:
        other = OffsetIndex(self.base_offset, self._interval_bytes)
        other.end_offset, other.size = self.end_offset, self.size
        other._offsets, other._positions = self._offsets[:], self._positions[:]
        return other

    def encode(self) -> bytes:
        head = _HEAD.pack(self.base_offset, self.end_offset, self.size)
        return wrap(Kind.OFFSET_INDEX, head + big_endian(self._offsets) + big_endian(self._positions))

    @classmethod
    def decode(cls, content: bytes, interval_bytes: int) -> OffsetIndex:
        """Decode the output of `encode`. Raises `DamagedFile`."""
        payload = unwrap(Kind.OFFSET_INDEX, content)
        count, rest = divmod(len(payload) - _HEAD.size, _ENTRY_BYTES)
        if count < 0 or rest:
            raise DamagedFile(f"an offset index of {len(payload)} bytes")
        base, end, size = _HEAD.unpack_from(payload)
        index = cls(Offset(base), interval_bytes)
        index.end_offset, index.size = Offset(end), size
        middle = _HEAD.size + 4 * count
        index._offsets = from_big_endian("I", payload[_HEAD.size : middle])
        index._positions = from_big_endian("I", payload[middle:])
        if not (
            rises([0, *index._offsets])
            and rises([0, *index._positions])
            and (not count or (index._offsets[-1] < end - base and index._positions[-1] < size))
        ):
            raise DamagedFile("the entries of an offset index do not rise")
        return index


def rises(numbers: array[int] | list[int]) -> bool:
    """Whether each number is greater than the one before."""
    return all(map(int.__lt__, numbers[:-1], numbers[1:]))


def big_endian(numbers: array[int]) -> bytes:
    """Return the array's bytes in the order that files use."""
    if sys.byteorder == "big":
        return numbers.tobytes()
    swapped = numbers[:]
    swapped.byteswap()
    return swapped.tobytes()


def from_big_endian(typecode: str, data: bytes) -> array[int]:
    """Return the array of bytes from a file."""
    numbers: array[int] = array(typecode)
    numbers.frombytes(data)
    if sys.byteorder != "big":
        numbers.byteswap()
    return numbers
