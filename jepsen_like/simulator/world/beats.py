"""The ticks of a simulated node's quorum, at the times of its thread in production
(`metadata/quorum_thread/thread.py`).

A tick follows soon after each input, otherwise some time after the last tick. That time is short while no leader is
known. With a leader, the leader ticks when its heartbeat is due; a follower is woken by the heartbeats, and ticks by
itself only when one is late.
"""

from __future__ import annotations

from collections.abc import Callable

from metadata.quorum.pace import TICK_SECONDS, Paced, pause_after_tick
from raftlog.config import TimingConfig
from raftlog.ports import Clock

from .heap import Event, EventHeap, Life

ROUNDING = 1e-9
"""Seconds: sums of times are not exact."""


class Beats:
    """The ticks of one life of a node."""

    def __init__(
        self,
        quorum: Paced,
        tick: Callable[[], None],
        heap: EventHeap,
        life: Life,
        clock: Clock,
        timing: TimingConfig,
        *,
        wake_seconds: float = 0.0,
        alone_seconds: float = TICK_SECONDS,
    ) -> None:
        """`wake_seconds`: delay of the tick after an input, which later inputs share. `alone_seconds`: time between two
        ticks while no leader is known. No tick comes before `begin`.
        """
        self._quorum = quorum
        self._tick_node = tick
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
        """Start ticking, with the first tick now."""
        self._beat()

    def soon(self) -> None:
        """Tick after the current input."""
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
        self._tick_node()
        before = self._pause
        self._pause = pause_after_tick(self._quorum, self._clock.monotonic(), self._heartbeat, self._alone)
        if self._pause < before and self._next is not None:
            self._next.cancel()
            self._wait()

    def _wait(self) -> None:
        delay = self._ticked_at + self._pause - self._heap.now
        self._next = self._heap.schedule(delay, self._beat, self._life)
