"""Bugs of cluster time: a single node's wall clock makes something expire.

Most holes are closed twice, so that one mistake has no effect: the age of a timestamp counts at the earliest from the
beginning of cluster time, and the image refuses to expire what is not past. A bug that removes both says so.
"""

from __future__ import annotations

from typing import Any

from metadata.commands.cluster import MAX_STEP_MS, AdvanceTime
from metadata.commands.results import Done, Refused
from metadata.controller.group_coordinator import Coordinator
from metadata.controller.time_keeper import TimeKeeper
from metadata.image import apply as image
from metadata.image import groups as group_image
from metadata.image.image import ClusterImage
from metadata.records.groups import in_order
from raftlog.model import ClusterTime
from raftlog.system.cluster_clock import ClusterClock

from .patches import CLUSTER, GROUPS, Patch, Planted, original

_decide = original(Coordinator, "decide")
_advance = original(image, "advance_time")


def _own_wall_clock(clock: Any) -> Any:
    """Return the node's own wall clock."""
    return clock._clock.wall_ms()


def _stamps_of_the_asker(state: Any, proposed_ms: int) -> int:
    """Stamp a command with the wall clock of the node that received it."""
    return proposed_ms


def _as_it_says(time: Any, stamp_ms: int) -> int:
    """Take a timestamp as it is, from any node and any time."""
    return stamp_ms


class _OwnTime:
    """The coordinator's knowledge, with the time of its node's wall clock."""

    def __init__(self, facts: Any, now_ms: int) -> None:
        self.time = ClusterTime(now_ms, 1, now_ms)
        self._facts = facts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._facts, name)


def _decides_by_its_wall_clock(self: Any, now: float, now_ms: int) -> Any:
    """Judge age by the coordinator's own clock."""
    facts, self._facts = self._facts, _OwnTime(self._facts, now_ms)
    changes = _decide(self, now, now_ms)
    self._facts = facts
    return changes


def _expires_what_it_is_told(state: Any, expire: Any) -> Any:
    """Trust the coordinator's time."""
    group = state.groups.by_id.get(expire.group_id)
    if group is None or group.epoch != expire.epoch or group.members:
        return Refused("stale_group_epoch", f"group {expire.group_id!r} is not what it was")
    offsets = state.groups.offsets_of(expire.group_id)
    old = in_order(p for p, one in offsets.items() if one.commit_timestamp_ms < expire.before_ms)
    if len(old) == len(offsets):
        state.groups.remove_group(group)
    elif old:
        state.groups.remove_offsets(expire.group_id, old)
    return None


def _follows_the_latest(self: Any, now: float, time: Any, voters: Any, known_at: float) -> Any:
    """Follow the clock that is furthest ahead, at once."""
    latest = max((reading.offset_ms for reading in self._readings.values()), default=None)
    if latest is None:
        return None
    return AdvanceTime(self._term, time.now_ms, max(time.now_ms, int(latest + now * 1000)), 0)


def _any_step(state: Any, command: Any, term: int) -> Any:
    """Accept a step of any size, and keep the age of earlier timestamps."""
    if command.to_ms <= state.time.now_ms + MAX_STEP_MS:
        return _advance(state, command, term)
    if command.term != term or command.from_ms != state.time.now_ms:
        return Refused("invalid_request", "another step")
    state.put_time(ClusterTime(command.to_ms, state.time.began_ms or command.to_ms, 0))
    return Done()


CLOCK_BUGS_OF_GROUPS = (
    Planted(
        "offsets_are_stamped_by_the_asked_node",
        "offsets of a group expire because the node that received its commits has a slow clock",
        "ClusterImage.stamp_ms is cluster time; ClusterTime.since_ms",
        (
            Patch(ClusterImage, "stamp_ms", _stamps_of_the_asker),
            Patch(ClusterTime, "since_ms", _as_it_says),
        ),
        GROUPS,
    ),
    Planted(
        "offsets_expire_by_the_coordinators_clock",
        "offsets of a group expire because the coordinator's clock is ahead, from its start or after a jump",
        "Coordinator expires by the view's time; the image refuses a time that is not past",
        (
            Patch(Coordinator, "decide", _decides_by_its_wall_clock),
            Patch(group_image, "_expire", _expires_what_it_is_told),
        ),
        GROUPS,
    ),
    Planted(
        "one_clock_moves_the_time",
        "cluster time follows one voter's clock that jumps, and offsets expire",
        "TimeKeeper._step needs a majority, and waits after a jump; advance_time takes bounded steps",
        (
            Patch(TimeKeeper, "_step", _follows_the_latest),
            Patch(image, "advance_time", _any_step),
        ),
        GROUPS,
    ),
)

CLOCK_BUGS_OF_CLUSTERS = (
    Planted(
        "any_clock_is_believed",
        "a node whose wall clock is ahead, from its start or after a jump, expires young records",
        "ClusterClock.expiry_ms is cluster time, not this node's wall clock",
        (Patch(ClusterClock, "expiry_ms", _own_wall_clock),),
        CLUSTER,
    ),
    Planted(
        "records_are_stamped_by_any_clock",
        "a leader whose wall clock is slow stamps records so old that they expire",
        "ClusterClock.stamp_ms is never before cluster time",
        (Patch(ClusterClock, "stamp_ms", _own_wall_clock),),
        CLUSTER,
    ),
)
