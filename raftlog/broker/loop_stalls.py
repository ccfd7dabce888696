"""Stalls of the event loop, measured in every turn.

Between two polls of the selector the loop runs callbacks and serves nothing else. So the gauge is in the selector. A
timer that measures its own lateness would see a stall only if it happened to be due; this gauge misses none, and an
idle loop, which makes no turns, costs nothing. A turn costs three readings of clocks: under a microsecond.

There are two clocks. The wall clock measures what users notice, including the time that the machine gave to other
processes. The thread's processor time measures what raftlog's callbacks needed, the same on a busy machine as on a
quiet one. Nothing is counted before `begin`, because a node that imports and recovers has no users yet.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

STALL_SECONDS = 0.02
"""Duration of a turn that counts as a stall, in seconds."""
WARN_SECONDS = 0.1
"""Duration of a stall that is logged, in seconds: shorter ones happen on any shared machine."""
WARN_EVERY_SECONDS = 10.0
RECENT_SECONDS = 60.0
READ_SECONDS = 0.004
"""Minimum time between two readings of the processor time, in seconds.

Such a reading costs ten times one of the wall clock. Shorter turns share a reading, so a turn is charged at most this
much too much.
"""
RECENT_MAX = 4096
"""Maximum number of remembered stalls: more than fit into `RECENT_SECONDS`."""


class StallReport(msgspec.Struct, frozen=True):
    """The gauge's results, in seconds."""

    stalls: int
    """Turns of at least `STALL_SECONDS` of wall time, since `begin`."""
    worst: float
    worst_processor: float
    """Processor time of the loop's thread alone."""
    recent_stalls: int
    """Stalls in the last `RECENT_SECONDS`."""
    recent_worst: float


class LoopStalls:
    """The gauge. Create the loop with `new_loop`, and call `begin` when the node accepts requests."""

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
        """(time of its end, duration) of each recent stall."""
        self._warn_again_at = 0.0
        self._not_warned = 0

    def new_loop(self) -> asyncio.AbstractEventLoop:
        """Return a loop that this gauge measures."""
        return asyncio.SelectorEventLoop(_MeasuredSelector(begins=self.turn_begins, ends=self.turn_ends))

    def begin(self, warn: Callable[..., Any]) -> None:
        """Start counting. Call it on the loop's thread. `warn(event, **fields)` receives an occasional log line."""
        self._warn = warn
        self._turn_began = self._read_at = self._wall()
        self._processor_read = self._processor()

    def report(self) -> StallReport:
        """Return the results so far."""
        since = self._wall() - RECENT_SECONDS
        while self._recent and self._recent[0][0] < since:
            self._recent.popleft()
        recent_worst = max((held for _, held in self._recent), default=0.0)
        return StallReport(self._stalls, self._worst, self._worst_processor, len(self._recent), recent_worst)

    def turn_begins(self) -> None:
        """Record that the selector has returned."""
        self._turn_began = self._wall()

    def turn_ends(self) -> None:
        """Record that all callbacks that were due have run."""
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
    """A selector that reports when a turn of the loop begins and ends."""

    def __init__(self, *, begins: Callable[[], None], ends: Callable[[], None]) -> None:
        super().__init__()
        self._begins = begins
        self._ends = ends

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._ends()
        ready = super().select(timeout)
        self._begins()
        return ready
