"""The values that a benchmark sends: made before the clock starts, distinct, incompressible, and sent only once.

What is sent twice is another value the second time: between two passes over the pool each value is combined with the
same random one, which keeps them distinct. Nothing here is for a clock to see.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence

PIECE_VALUES = 10_000
"""How many are made, or salted, by one call."""


class Pool:
    """Values of one size. Needs some 2.5 bytes of memory for each of 100-byte values."""

    def __init__(self, count: int, value_bytes: int) -> None:
        """Raises `ValueError` unless there are some, of at least a byte."""
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
        """Other values everywhere, as distinct as before."""
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
    """Of a collection, whatever its order: sums of several may be added. A value of None counts as an empty one."""
    try:
        return sum(map(zlib.crc32, values))  # type: ignore[arg-type]
    except TypeError:
        return sum(zlib.crc32(value or b"") for value in values)
