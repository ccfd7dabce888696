"""Bugs of the cluster's time: somebody's wall clock makes something old.

Most holes are closed twice, so that one mistake is none: what a stamp says counts from the time's beginning on at the
earliest, and the image refuses to call old what is not past. Where a bug takes both away it says so.
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
    """Whatever the node's wall clock says."""
    return clock._clock.wall_ms()


def _stamps_of_the_asker(state: Any, proposed_ms: int) -> int:
    """A command is stamped with the wall clock of the node that took it."""
    return proposed_ms


def _as_it_says(time: Any, stamp_ms: int) -> int:
    """A stamp counts as it is, whoever made it and when."""
    return stamp_ms


class _OwnTime:
    """What the coordinator knows, and the time by its node's wall clock."""

    def __init__(self, facts: Any, now_ms: int) -> None:
        self.time = ClusterTime(now_ms, 1, now_ms)
        self._facts = facts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._facts, name)


def _decides_by_its_wall_clock(self: Any, now: float, now_ms: int) -> Any:
    """What is old is judged by the clock of whoever coordinates."""
    facts, self._facts = self._facts, _OwnTime(self._facts, now_ms)
    changes = _decide(self, now, now_ms)
    self._facts = facts
    return changes


def _expires_what_it_is_told(state: Any, expire: Any) -> Any:
    """The coordinator is right about the time."""
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
    """The clock that is furthest ahead is right, at once: none may be behind it."""
    latest = max((reading.offset_ms for reading in self._readings.values()), default=None)
    if latest is None:
        return None
    return AdvanceTime(self._term, time.now_ms, max(time.now_ms, int(latest + now * 1000)), 0)


def _any_step(state: Any, command: Any, term: int) -> Any:
    """However far it is, and what was stamped before it is as old as it says."""
    if command.to_ms <= state.time.now_ms + MAX_STEP_MS:
        return _advance(state, command, term)
    if command.term != term or command.from_ms != state.time.now_ms:
        return Refused("invalid_request", "another step")
    state.put_time(ClusterTime(command.to_ms, state.time.began_ms or command.to_ms, 0))
    return Done()


CLOCK_BUGS_OF_GROUPS = (
    Planted(
        "offsets_are_stamped_by_the_asked_node",
        "offsets of a group expire because the node that took its commits has a clock that is behind",
        "ClusterImage.stamp_ms is the cluster's time; ClusterTime.since_ms",
        (
            Patch(ClusterImage, "stamp_ms", _stamps_of_the_asker),
            Patch(ClusterTime, "since_ms", _as_it_says),
        ),
        GROUPS,
    ),
    Planted(
        "offsets_expire_by_the_coordinators_clock",
        "offsets of a group expire because the coordinator's clock is ahead, from its start or by a leap",
        "Coordinator expires by the view's time; the image refuses what is not past",
        (
            Patch(Coordinator, "decide", _decides_by_its_wall_clock),
            Patch(group_image, "_expire", _expires_what_it_is_told),
        ),
        GROUPS,
    ),
    Planted(
        "one_clock_moves_the_time",
        "the cluster's time follows one voter's clock that leaps, and offsets expire by it",
        "TimeKeeper._step wants a majority, and patience where it leaps; advance_time takes bounded steps",
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
        "a node whose wall clock is ahead makes young records too old to be kept, from its start or by a leap",
        "ClusterClock.expiry_ms is the cluster's time, not this node's wall clock",
        (Patch(ClusterClock, "expiry_ms", _own_wall_clock),),
        CLUSTER,
    ),
    Planted(
        "records_are_stamped_by_any_clock",
        "a leader whose wall clock is behind stamps records so that they are too old to be kept",
        "ClusterClock.stamp_ms is never before the cluster's time",
        (Patch(ClusterClock, "stamp_ms", _own_wall_clock),),
        CLUSTER,
    ),
)
