"""What happened, as one hash (every line, and every byte that travelled) and as its last lines.

The same seed and code give the same hash, in any process.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable

LINES_KEPT = 4000
HASHED_AT_ONCE = 1 << 16
"""Bytes that are gathered before they go into the hash: a call of the hash costs more than a message."""


class Trace:
    """Every noteworthy event with its virtual time."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._hash = hashlib.blake2b(digest_size=8)
        self._gathered = bytearray()
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)

    def note(self, node: int, text: str) -> None:
        """`node` is -1 for the world."""
        line = f"{self._now():10.4f} {'world' if node < 0 else f'node-{node}'} {text}"
        self._gathered += line.encode()
        self.lines.append(line)

    def message(self, sender: int, receiver: int, content: bytes) -> None:
        """A message is part of the hash and not of the lines."""
        self._gathered += b"%.9f %d %d " % (self._now(), sender, receiver)
        self._gathered += content
        if len(self._gathered) > HASHED_AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        self._hash.update(self._gathered)
        self._gathered.clear()

    def digest(self) -> str:
        """Of everything noted so far."""
        self._flush()
        return self._hash.hexdigest()
