"""How long a quorum node may be left alone where nothing arrives: the pace of whoever ticks it, thread or simulator.

With a leader at hand a node need not look at the clock often: its leader's heartbeats wake it. Without one it is looked
at again when something of its own is due: an election, a retry, a deadline.
"""

from __future__ import annotations

import math
from typing import Protocol

TICK_SECONDS = 0.04
"""So long after the last tick comes the next without any input, at least, while no leader is at hand..."""

LOOK_AT_LEAST = 0.5
"""...and at most so long, whatever is due."""

FOLLOWED_HEARTBEATS = 1.5
"""With one at hand, its heartbeats are a voter's ticks; only when one is late does it look for itself."""

HEARTBEAT_LATE = 0.25
"""By so much of its interval a leader's heartbeat may be late where nothing arrives: an input soon after it is due then
saves a wake, and no input ever puts it off."""


class Paced(Protocol):
    """What is ticked."""

    @property
    def reaches_leader(self) -> bool:
        """A leader is at hand, or this node is it."""
        ...

    @property
    def next_heartbeat(self) -> float:
        """When the leader's is due, by the node's clock; infinite where this node does not lead."""
        ...

    @property
    def next_look(self) -> float:
        """When time gives the node something to do, by its clock."""
        ...


def pause_after_tick(node: Paced, now: float, heartbeat: float, alone: float = TICK_SECONDS) -> float:
    """Seconds to the next tick without any input. `now` is by the node's clock, `heartbeat` the interval in seconds,
    `alone` the least pause while no leader is at hand."""
    if not node.reaches_leader:
        return max(alone, min(node.next_look - now, LOOK_AT_LEAST))
    if math.isinf(node.next_heartbeat):
        return FOLLOWED_HEARTBEATS * heartbeat
    return max(0.0, node.next_heartbeat - now) + HEARTBEAT_LATE * heartbeat
