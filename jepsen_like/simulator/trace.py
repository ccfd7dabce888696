"""What happened, as one hash and (on request) as lines: the same seed and code give the same hash."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable

LINES_KEPT = 4000


class Trace:
    """Every noteworthy event with its virtual time."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._hash = hashlib.blake2b(digest_size=8)
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)

    def note(self, node: int, text: str) -> None:
        """`node` is -1 for the world."""
        line = f"{self._now():10.4f} {'world' if node < 0 else f'node-{node}'} {text}"
        self._hash.update(line.encode())
        self.lines.append(line)

    def digest(self) -> str:
        """Of everything noted so far."""
        return self._hash.hexdigest()
