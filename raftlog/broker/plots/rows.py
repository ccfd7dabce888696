"""The rows of the ring as bytes, and averages of them. A pure core.

A row has its slot, the format and a CRC-32C of everything else, then a 32-bit float for each column; NaN: no value. Its
place in the file is the slot modulo `ROWS`, so a row whose slot is another one than expected is from an earlier lap: a
gap.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence

import msgspec
from crc32c import crc32c

from .columns import COLUMNS, FORMAT

SLOT_MS = 10_000
"""The time between two samples."""
ROWS = 24 * 60 * 60 * 1000 // SLOT_MS
_HEAD = struct.Struct(">QI")
_VALUES = struct.Struct(f">{COLUMNS}f")
_CRC = struct.Struct(">I")
ROW_BYTES = _HEAD.size + _VALUES.size + _CRC.size
RING_BYTES = ROWS * ROW_BYTES
MOST_POINTS = 360
NONE = float("nan")
_GREATEST = 3.4e38


class Span(msgspec.Struct, frozen=True, array_like=True):
    """The points of a plot: `points` intervals of `step` slots, the last of which ends before the slot `end`."""

    end: int
    step: int
    points: int

    @classmethod
    def of(cls, minutes: int, now_ms: int) -> Span:
        """Return the span of the last minutes, in at most `MOST_POINTS` points. Points lie at multiples of the step, so
        that all nodes have the same ones."""
        slots = min(ROWS, max(1, minutes * 60_000 // SLOT_MS))
        step = math.ceil(slots / MOST_POINTS)
        # The sample of the last slot may still be on its way to the disk.
        last = now_ms // SLOT_MS - 1
        return cls(last // step * step, step, math.ceil(slots / step))

    @property
    def first(self) -> int:
        """Return the first slot."""
        return self.end - self.step * self.points

    def is_within_bounds(self) -> bool:
        """Return whether a span that another node sent is one that `of` makes."""
        return (
            0 < self.points <= MOST_POINTS
            and 0 < self.step <= ROWS
            and self.step * self.points <= ROWS + self.step
            and self.first >= 0
            and self.end < 2**40
        )


def encode_row(slot: int, values: Mapping[int, float]) -> bytes:
    """Return a row from its values by column."""
    row = [NONE] * COLUMNS
    for column, value in values.items():
        row[column] = max(-_GREATEST, min(_GREATEST, value))
    content = _HEAD.pack(slot, FORMAT) + _VALUES.pack(*row)
    return content + _CRC.pack(crc32c(content))


def place_of(slot: int) -> int:
    """Return the position of a row in the file."""
    return slot % ROWS * ROW_BYTES


class Averages:
    """The averages of some columns over the intervals of a span, from rows in any order."""

    def __init__(self, span: Span, columns: Sequence[int], since: int) -> None:
        """`since`: the first slot whose values count."""
        self._span = span
        self._columns = [(column, _HEAD.size + 4 * column) for column in columns]
        self._since = max(since, span.first)
        self._sums = [[0.0] * span.points for _ in columns]
        self._counts = [[0] * span.points for _ in columns]

    def add(self, content: bytes) -> None:
        """Add the rows in a piece of the file, which begins with a row. Rows that are damaged, of another format or of
        another lap are left out."""
        unpack = struct.Struct(">f").unpack_from
        for start in range(0, len(content) - ROW_BYTES + 1, ROW_BYTES):
            slot, kind = _HEAD.unpack_from(content, start)
            if not self._since <= slot < self._span.end or kind != FORMAT:
                continue
            end = start + ROW_BYTES - _CRC.size
            if crc32c(content[start:end]) != _CRC.unpack_from(content, end)[0]:
                continue
            point = (slot - self._span.first) // self._span.step
            for number, (_, offset) in enumerate(self._columns):
                (value,) = unpack(content, start + offset)
                if not math.isnan(value):
                    self._sums[number][point] += value
                    self._counts[number][point] += 1

    def columns(self) -> list[list[float | None]]:
        """Return the averages of each column; None for intervals without a value."""
        return [
            [total / count if count else None for total, count in zip(sums, counts, strict=True)]
            for sums, counts in zip(self._sums, self._counts, strict=True)
        ]


def summed(parts: Sequence[Sequence[float | None]]) -> list[float | None]:
    """Return the sums of what several nodes have for the same points; None where none has a value."""
    points = ([one for one in point if one is not None] for point in zip(*parts, strict=True))
    return [sum(known) if known else None for known in points]
