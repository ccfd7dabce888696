"""What happened, as one hash (every line, and every message with its time) and as its last lines.

The same seed and code give the same hash, in any process. Messages are most of what happens, so each goes into a
running sum of its checksum: what must be found is that two runs differ, not who forged one.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable, Mapping
from zlib import crc32

LINES_KEPT = 4000


class Trace:
    """Every noteworthy event with its virtual time."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lines = hashlib.blake2b(digest_size=8)
        self._messages = 0
        """Of numbers alone: Python's hash of those is the same in every process."""
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)
        self.logged: Counter[str] = Counter()
        """What the product logged, by event."""

    def note(self, node: int, text: str) -> None:
        """`node` is -1 for the world."""
        line = f"{self._now():10.4f} {'world' if node < 0 else f'node-{node}'} {text}"
        self._lines.update(line.encode())
        self.lines.append(line)

    def log(self, node: int, event: str, fields: Mapping[str, object]) -> None:
        """A log line of the product."""
        self.logged[event] += 1
        self.note(node, f"{event} {fields}")

    def message(self, sender: int, receiver: int, content: bytes) -> None:
        """A message is part of the hash and not of the lines."""
        self._messages = hash((self._messages, self._now(), sender, receiver, crc32(content)))

    def digest(self) -> str:
        """Of everything noted so far."""
        whole = self._lines.copy()
        whole.update(b"%d" % self._messages)
        return whole.hexdigest()
