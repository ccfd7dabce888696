"""How long the event loop was held: measured at every turn of it.

Between two questions to the selector ("what came?") the loop runs callbacks, and nobody else is served. So the gauge
sits in the selector. A timer that measures how late it is would see a stall only where it happened to be due; here none
is missed, and an idle loop, which makes no turns, costs nothing. A turn costs three readings of clocks: under a
microsecond.

Two clocks. By the wall a turn took what users notice, and that includes what the machine gave to others; by the
thread's processor time it took what our callbacks needed, on a busy machine as on a quiet one. Nothing
counts before `begin`: a node that starts imports and recovers, and nobody waits for it yet.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

STALL_SECONDS = 0.02
"""A turn that takes this long is a stall."""
WARN_SECONDS = 0.1
"""A stall that takes this long is worth a line in the log: shorter ones happen wherever a machine is shared."""
WARN_EVERY_SECONDS = 10.0
RECENT_SECONDS = 60.0
READ_SECONDS = 0.004
"""How often the processor time is read at most, which costs ten times what the wall clock does: shorter turns share a
reading, and so a turn is charged with this much too much at worst."""
RECENT_MAX = 4096
"""Stalls remembered: more than fit into `RECENT_SECONDS`."""


@dataclass(frozen=True, slots=True)
class StallReport:
    """What the gauge shows. Seconds."""

    stalls: int
    """Turns of at least `STALL_SECONDS`, by the wall, since the node began."""
    worst: float
    worst_processor: float
    """Of the loop's thread alone."""
    recent_stalls: int
    """In the last `RECENT_SECONDS`."""
    recent_worst: float


class LoopStalls:
    """The gauge. Make the loop with `new_loop`, and `begin` when the node takes requests."""

    def __init__(
        self, wall: Callable[[], float] = time.monotonic, processor: Callable[[], float] = time.thread_time
    ) -> None:
        self._wall = wall
        self._processor = processor
        self._warn: Callable[..., Any] | None = None
        self._turn_began = 0.0
        self._processor_read = 0.0
        self._read_at = 0.0
        self._stalls = 0
        self._worst = 0.0
        self._worst_processor = 0.0
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT_MAX)
        """(when it ended, how long it took)."""
        self._warn_again_at = 0.0
        self._not_warned = 0

    def new_loop(self) -> asyncio.AbstractEventLoop:
        """A loop that this gauge measures."""
        return asyncio.SelectorEventLoop(_MeasuredSelector(begins=self.turn_begins, ends=self.turn_ends))

    def begin(self, warn: Callable[..., Any]) -> None:
        """Count from here on, on the loop's thread. `warn(event, **fields)` gets a line now and then."""
        self._warn = warn
        self._turn_began = self._read_at = self._wall()
        self._processor_read = self._processor()

    def report(self) -> StallReport:
        """What was measured until now."""
        since = self._wall() - RECENT_SECONDS
        while self._recent and self._recent[0][0] < since:
            self._recent.popleft()
        recent_worst = max((held for _, held in self._recent), default=0.0)
        return StallReport(self._stalls, self._worst, self._worst_processor, len(self._recent), recent_worst)

    def turn_begins(self) -> None:
        """The selector has answered."""
        self._turn_began = self._wall()

    def turn_ends(self) -> None:
        """All callbacks that were due have run."""
        if self._warn is None:
            return
        now = self._wall()
        if now - self._read_at < READ_SECONDS:
            return
        held, processor = now - self._turn_began, self._processor()
        worked = processor - self._processor_read
        self._read_at, self._processor_read = now, processor
        self._worst_processor = max(self._worst_processor, worked)
        if held >= STALL_SECONDS:
            self._stalled(now, held, worked)

    def _stalled(self, now: float, held: float, worked: float) -> None:
        self._stalls += 1
        self._worst = max(self._worst, held)
        self._recent.append((now, held))
        if held < WARN_SECONDS:
            return
        if now < self._warn_again_at:
            self._not_warned += 1
            return
        self._warn_again_at = now + WARN_EVERY_SECONDS
        others, self._not_warned = self._not_warned, 0
        if self._warn is not None:
            self._warn("loop stalled", ms=round(held * 1000), processor_ms=round(worked * 1000), others_since=others)


class _MeasuredSelector(selectors.DefaultSelector):
    """Tells when a turn of the loop begins and ends."""

    def __init__(self, *, begins: Callable[[], None], ends: Callable[[], None]) -> None:
        super().__init__()
        self._begins = begins
        self._ends = ends

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._ends()
        ready = super().select(timeout)
        self._begins()
        return ready
