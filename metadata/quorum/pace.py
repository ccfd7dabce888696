"""The time for which a quorum node may be left without a tick if nothing arrives; threads and simulators both use it.

If a leader is reachable, the node need not check the clock often: the leader's heartbeats wake it. Without one it is
ticked again when something of its own is due: an election, a retry, a deadline.
"""

from __future__ import annotations

import math
from typing import Protocol

TICK_SECONDS = 0.04
"""The shortest pause, in seconds, before a tick without input while no leader is reachable..."""

LOOK_AT_LEAST = 0.5
"""...and the longest, in seconds, whatever is due."""

FOLLOWED_HEARTBEATS = 1.5
"""The pause of a node with a reachable leader, in heartbeat intervals. The heartbeats wake it; only if one is late
does the node check the clock itself."""

HEARTBEAT_LATE = 0.25
"""How late a leader's heartbeat may be if nothing arrives, as a part of its interval.

If an input arrives soon after the heartbeat is due, this saves a wake-up. No input ever postpones the heartbeat.
"""


class Paced(Protocol):
    """A node that is ticked."""

    @property
    def reaches_leader(self) -> bool:
        """Whether a leader is reachable, or this node leads."""
        ...

    @property
    def next_heartbeat(self) -> float:
        """When the leader's heartbeat is due, by the node's clock; infinite if this node does not lead."""
        ...

    @property
    def next_look(self) -> float:
        """When time alone gives the node something to do, by its clock."""
        ...


def pause_after_tick(node: Paced, now: float, heartbeat: float, alone: float = TICK_SECONDS) -> float:
    """Return the seconds until the next tick if no input arrives.

    `now` is by the node's clock, `heartbeat` is the interval in seconds, and `alone` is the shortest pause while no
    leader is reachable.
    """
    if not node.reaches_leader:
        return max(alone, min(node.next_look - now, LOOK_AT_LEAST))
    if math.isinf(node.next_heartbeat):
        return FOLLOWED_HEARTBEATS * heartbeat
    return max(0.0, node.next_heartbeat - now) + HEARTBEAT_LATE * heartbeat
