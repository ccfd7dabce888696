"""The values that a benchmark sends: made before the clock starts, distinct, incompressible, and sent only once.

For a second pass over the pool each value is combined with the same random one, which keeps the values distinct. None
of this work is timed.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence

PIECE_VALUES = 10_000
"""Number of values that one call makes or changes."""


class Pool:
    """Values of one size. A pool of 100-byte values needs memory of some 2.5 times their size."""

    def __init__(self, count: int, value_bytes: int) -> None:
        """Raises `ValueError` unless there is at least one value of at least one byte."""
        if count < 1 or value_bytes < 1:
            raise ValueError(f"{count} values of {value_bytes} bytes")
        self._value_bytes = value_bytes
        self._piece = PIECE_VALUES * value_bytes
        self.content = bytearray()
        """All values, one after the other."""
        for start in range(0, count * value_bytes, self._piece):
            self.content += os.urandom(min(self._piece, count * value_bytes - start))
        self.values: list[bytes] = []
        self._cut()

    @property
    def bytes(self) -> int:
        return len(self.content)

    def salt(self) -> None:
        """Replace all values by new ones, as distinct as before."""
        salt = int.from_bytes(os.urandom(self._value_bytes) * PIECE_VALUES, "little")
        self.values = []
        for start in range(0, self.bytes, self._piece):
            piece = self.content[start : start + self._piece]
            mask = salt & ((1 << 8 * len(piece)) - 1)
            mixed = int.from_bytes(piece, "little") ^ mask
            self.content[start : start + len(piece)] = mixed.to_bytes(len(piece), "little")
        self._cut()

    def _cut(self) -> None:
        whole, size = bytes(self.content), self._value_bytes
        self.values = [whole[start : start + size] for start in range(0, len(whole), size)]


def checksum(values: Sequence[bytes | None]) -> int:
    """Return a checksum that does not depend on the order, so that those of parts may be added. None counts as
    empty."""
    try:
        return sum(map(zlib.crc32, values))  # type: ignore[arg-type]
    except TypeError:
        return sum(zlib.crc32(value or b"") for value in values)
