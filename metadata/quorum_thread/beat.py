"""The time of a node's ticks on its thread's loop: at the end of a turn with inputs that need one, and otherwise after
the pause that `metadata/quorum/pace.py` allows.

There is one timer. The tick of an input postpones it, so an idle node wakes for little else; a tick after which less
time is left, as when the leader is lost, brings it forward.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Protocol

from metadata.quorum.pace import TICK_SECONDS, Paced, pause_after_tick
from raftlog.ports import Clock


class Ticked(Paced, Protocol):
    """A node, as far as its ticks depend on it."""

    @property
    def busy(self) -> bool:
        """Whether a tick ran out of time."""
        ...

    @property
    def wants_tick(self) -> bool:
        """Whether a tick has anything to do now."""
        ...


class Beat:
    """The ticks of one node. Made and called on its loop."""

    def __init__(self, node: Ticked, tick: Callable[[], None], clock: Clock, heartbeat: float) -> None:
        """`heartbeat` is the leader's interval in seconds."""
        self._node = node
        self._tick_node = tick
        self._clock = clock
        self._heartbeat = heartbeat
        self._loop = asyncio.get_running_loop()
        self._tick_due = False
        self._next_tick = -math.inf
        """The time of the next tick without input, by the loop."""
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False

    @property
    def due_at(self) -> float:
        """When the next tick is due if no input arrives, by the loop's clock."""
        return self._next_tick

    @property
    def wakes_at(self) -> float:
        """When the timer fires: at the next tick, or before it, to set itself again; infinite before `begin`."""
        return math.inf if self._timer is None else self._timer.when()

    def begin(self) -> None:
        """Tick now, and from then on."""
        self._on_timer()

    def on_input(self) -> None:
        """Tick at the end of this turn of the loop, for all of its inputs, if any needs it."""
        if not self._tick_due and self._node.wants_tick:
            self._soon()

    def tick(self) -> None:
        """Tick now, and compute when the next tick is due."""
        self._tick_due = False
        if self._ended:
            return
        self._tick_node()
        if self._node.busy:
            self._soon()
        pause = pause_after_tick(self._node, self._clock.monotonic(), self._heartbeat, TICK_SECONDS)
        self._next_tick = self._loop.time() + pause
        if self._timer is not None and self._next_tick < self._timer.when():
            self._set_timer()

    def end(self) -> None:
        """Stop ticking."""
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()

    def _soon(self) -> None:
        if not self._tick_due and not self._ended:
            self._tick_due = True
            self._loop.call_soon(self.tick)

    def _on_timer(self) -> None:
        self._timer = None
        if self._loop.time() >= self._next_tick:
            self.tick()
        if not self._ended:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._next_tick, self._on_timer)
