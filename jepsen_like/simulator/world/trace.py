"""The trace of a run: one hash (over every line, and every message with its time) and the last lines.

The same seed and code give the same hash, in any process. Messages are most of what happens, so each is added to a
running checksum: the hash has to detect that two runs differ, not forgery.
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
        """A hash of numbers only: Python's hash of numbers is the same in every process."""
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)
        self.logged: Counter[str] = Counter()
        """Number of the product's log lines by event."""

    def note(self, node: int, text: str) -> None:
        """Add a line; `node` is -1 for the world."""
        line = f"{self._now():10.4f} {'world' if node < 0 else f'node-{node}'} {text}"
        self._lines.update(line.encode())
        self.lines.append(line)

    def log(self, node: int, event: str, fields: Mapping[str, object]) -> None:
        """Add a log line of the product."""
        self.logged[event] += 1
        self.note(node, f"{event} {fields}")

    def message(self, sender: int, receiver: int, content: bytes) -> None:
        """Add a message to the hash, but not to the lines."""
        self._messages = hash((self._messages, self._now(), sender, receiver, crc32(content)))

    def digest(self) -> str:
        """Return the hash of everything so far."""
        whole = self._lines.copy()
        whole.update(b"%d" % self._messages)
        return whole.hexdigest()
