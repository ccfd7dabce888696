"""When a simulated node's quorum is ticked: as its thread ticks it in production (`metadata/quorum_thread/thread.py`).

Soon after each input; else some time after the last tick. That time is short while no leader is at hand. With one, the
leader is ticked when its heartbeat is due, and a follower is woken by the heartbeats: only when one is late does it
look for itself.
"""

from __future__ import annotations

from typing import Protocol

from metadata.quorum.pace import TICK_SECONDS, Paced, pause_after_tick
from raftlog.config import TimingConfig
from raftlog.ports import Clock

from .heap import Event, EventHeap, Life

ROUNDING = 1e-9
"""Seconds: sums of times are not exact."""


class Ticked(Paced, Protocol):
    """What is ticked."""

    def tick(self) -> None: ...


class Beats:
    """The ticks of one life of one node."""

    def __init__(
        self,
        node: Ticked,
        heap: EventHeap,
        life: Life,
        clock: Clock,
        timing: TimingConfig,
        *,
        wake_seconds: float = 0.0,
        alone_seconds: float = TICK_SECONDS,
    ) -> None:
        """`wake_seconds`: how long after an input the tick comes, which it then shares with what came meanwhile.
        `alone_seconds`: between two ticks while no leader is at hand. Nothing is ticked before `begin`."""
        self._node = node
        self._heap = heap
        self._life = life
        self._clock = clock
        self._heartbeat = timing.quorum_heartbeat_ms / 1000
        self._wake = wake_seconds
        self._alone = alone_seconds
        self._pause = alone_seconds
        self._ticked_at = float("-inf")
        self._due = False
        self._next: Event | None = None

    def begin(self) -> None:
        """The first tick is now."""
        self._beat()

    def soon(self) -> None:
        """After the present input."""
        if not self._due:
            self._due = True
            self._heap.schedule(self._wake, self._tick, self._life)

    def _beat(self) -> None:
        self._next = None
        if self._heap.now >= self._ticked_at + self._pause - ROUNDING:
            self._tick()
        self._wait()

    def _tick(self) -> None:
        self._due = False
        self._ticked_at = self._heap.now
        self._node.tick()
        before = self._pause
        self._pause = pause_after_tick(self._node, self._clock.monotonic(), self._heartbeat, self._alone)
        if self._pause < before and self._next is not None:
            self._next.cancel()
            self._wait()

    def _wait(self) -> None:
        delay = self._ticked_at + self._pause - self._heap.now
        self._next = self._heap.schedule(delay, self._beat, self._life)
