"""Shrinking of a failing schedule: every part that the failure does not need is left out.

Delta debugging (Zeller and Hildebrandt, ddmin): chunks of the list are deleted, halves first, then ever smaller pieces,
until no single item can be deleted. First the time after the failure is cut, then faults, operations, and the time
after the last of them; twice, since fewer operations may make a fault superfluous. Only a violation of the same
guarantee counts as the same failure (`law_of`), so that the schedule does not drift to another bug.

A run is a function of its schedule, so shrinking is deterministic. It is bounded by `tries`, each a whole run; the
schedule reached by then is returned, and still fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from jepsen_like.simulator.cluster.schedule import ClusterSchedule
from jepsen_like.simulator.quorum.schedule import Schedule

T = TypeVar("T")
AnySchedule = TypeVar("AnySchedule", Schedule, ClusterSchedule)

SPARE_SECONDS = 0.5
EARLIER = (0.1, 0.2, 0.35, 0.5, 0.75)
"""Parts of the time that are tried, the shortest first."""


def law_of(violation: str) -> str:
    """Return the name of a failure: `S7.2`, or the exception's class."""
    return violation.partition(":")[0]


class Shrinker:
    """Shrinks schedules whose failure `run` detects."""

    def __init__(self, run: Callable[[Any], str], *, tries: int = 400) -> None:
        """`run(schedule)` returns the violation, or an empty text. `tries`: maximum number of runs."""
        self._run = run
        self._tries = tries
        self._law = ""

    @property
    def tries_left(self) -> int:
        return self._tries

    def shrink(self, schedule: AnySchedule) -> AnySchedule:
        """Return the smallest schedule found. Raises `ValueError` if the schedule does not fail."""
        self._law = law_of(self._run(schedule))
        if not self._law:
            raise ValueError(f"the schedule of seed {schedule.seed} does not fail: there is nothing to shrink")
        schedule = self._earlier(schedule)
        for _ in range(2):
            before = schedule
            schedule = self._fewer_faults(schedule)
            schedule = self._fewer_operations(schedule)
            schedule = self._shorter(schedule)
            if schedule == before:
                break
        return schedule

    def _fails(self, schedule: AnySchedule) -> bool:
        if self._tries <= 0:
            return False
        self._tries -= 1
        return law_of(self._run(schedule)) == self._law

    def _earlier(self, schedule: AnySchedule) -> AnySchedule:
        """Cut the time after the failure first, which shortens every later run."""
        for part in EARLIER:
            end = round(schedule.seconds * part, 1)
            cut = replace(
                schedule,
                seconds=end,
                faults=tuple(fault for fault in schedule.faults if fault.at < end),
                operations=tuple(operation for operation in schedule.operations if operation.at < end),
            )
            if self._fails(cut):
                return cut
        return schedule

    def _fewer_faults(self, schedule: AnySchedule) -> AnySchedule:
        kept = minimize(schedule.faults, lambda faults: self._fails(replace(schedule, faults=tuple(faults))))
        return replace(schedule, faults=tuple(kept))

    def _fewer_operations(self, schedule: AnySchedule) -> AnySchedule:
        kept = minimize(schedule.operations, lambda some: self._fails(replace(schedule, operations=tuple(some))))
        return replace(schedule, operations=tuple(kept))

    def _shorter(self, schedule: AnySchedule) -> AnySchedule:
        last = max(
            [fault.at + fault.seconds for fault in schedule.faults] + [o.at for o in schedule.operations] + [0.0]
        )
        for seconds in (last + SPARE_SECONDS, last + 3.0):
            shorter = replace(schedule, seconds=round(seconds, 1))
            if seconds < schedule.seconds and self._fails(shorter):
                return shorter
        return schedule


def minimize(items: Sequence[T], fails: Callable[[list[T]], bool]) -> list[T]:
    """ddmin: return a sublist that still fails and from which no single item can be deleted (according to `fails`)."""
    kept = list(items)
    if kept and fails([]):
        return []
    size = max(len(kept) // 2, 1)
    while kept:
        start = 0
        deleted = False
        while start < len(kept):
            shorter = kept[:start] + kept[start + size :]
            if shorter and fails(shorter):
                kept, deleted = shorter, True
            else:
                start += size
        if size == 1 and not deleted:
            break
        size = size if deleted and size == 1 else max(size // 2, 1)
    return kept
