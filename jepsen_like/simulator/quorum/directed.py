"""Directed scenarios: short sequences of faults that trigger known kinds of bugs. Half of the seeds have one.

The random faults of `schedule.py` cover nearly everything, but rarely five events in one particular order. Each
scenario here is such an order, placed at random moments of a run. Everything else stays as drawn, but the random faults
pause during a scenario.

* *squall*: elections while every second message is lost and most messages are duplicated, so votes are few and arrive
  twice.
* *strand*: a leader of five nodes continues with one follower, is deposed, and leads again. Meanwhile duplicates of the
  follower's acknowledgements from the first term arrive; the follower receives nothing from the second term.
* *maroon*: an isolated leader changes the voters, is deposed and becomes a follower. Then it is isolated together with
  half of the voters, which would be a majority of the voters that it had named.
* *rot_snapshot*: a bit flips in the part of a stored snapshot that names its last entry.
* *full_disk*: the disks of some or all nodes are full for a while.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from .schedule import LEADER, Fault, Operation, Schedule

FIRST_AT = (4.0, 6.0)
"""Earliest and latest start of the first scenario, in seconds of the run..."""
EVERY = 9.0
"""...and least time between two starts."""
BEFORE, LASTS = 2.5, 6.0
"""Seconds before a scenario's start and after it in which there are no random faults."""
ONE_IN = 2
"""One in this number of seeds has a scenario, if it fits the run's size."""
FOR_GOOD = ("rot", "lose_end", "rewind", "rot_snapshot", "replace_disk")
"""Faults of which a run has at most one, so the other voters keep a majority."""


@dataclass(slots=True)
class _Story:
    """The faults and operations that the scenarios add to one run."""

    rng: random.Random
    schedule: Schedule
    faults: list[Fault] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)

    def fault(self, at: float, kind: str, node: int = 0, seconds: float = 0.0, number: float = 0.0) -> None:
        self.faults.append(Fault(round(at, 4), kind, node, 0, round(seconds, 4), number))

    def ask_leader(self, at: float, kind: str, subject: int = 0) -> None:
        self.operations.append(Operation(round(at, 4), kind, LEADER, subject))

    def grants(self, at: float, number: int, every: float) -> None:
        for count in range(number):
            self.ask_leader(at + count * every, "grant")


def _squall(story: _Story, at: float) -> None:
    story.fault(at, "duplicate", seconds=3.0, number=0.9)
    story.fault(at, "drop", seconds=3.0, number=0.5)
    for node in range(story.schedule.nodes):
        for again in (0.1, 1.1, 2.1):
            story.fault(at + again, "clock_jump", node, number=0.7)


def _strand(story: _Story, at: float) -> None:
    if story.schedule.voters > 3:  # of three nodes, a leader with one follower is a majority
        seconds = story.rng.uniform(0.7, 1.0)
        story.fault(at, "strand", story.rng.randrange(story.schedule.nodes), seconds)
        story.grants(at + 0.1, 6, 0.03)
        story.grants(at + seconds + 0.55, 20, 0.03)


def _maroon(story: _Story, at: float) -> None:
    """An even number of voters is needed: then half of them is a majority of one voter fewer."""
    nodes = story.schedule.nodes
    if nodes > 3:
        for node in range(nodes):
            story.ask_leader(at - 2.4 + 0.2 * node, "add_voter", node)
        if nodes % 2:
            story.ask_leader(at - 0.9, "remove_voter", nodes - 1)
        story.fault(at, "maroon", seconds=1.4)
        for number, subject in enumerate(story.rng.sample(range(nodes - nodes % 2), 2)):
            story.ask_leader(at + 0.06 + 0.03 * number, "remove_voter", subject)


def _rot_snapshot(story: _Story, at: float) -> None:
    if not any(fault.kind in FOR_GOOD for fault in (*story.schedule.faults, *story.faults)):
        story.fault(at, "rot_snapshot", story.schedule.voters - 1, 0.3, story.rng.randrange(1 << 30))


def _full_disk(story: _Story, at: float) -> None:
    share = story.rng.choice((0.3, 1.0))
    for node in range(story.schedule.nodes):
        if story.rng.random() < share:
            story.fault(at + story.rng.uniform(0.0, 0.5), "full_disk", node, story.rng.uniform(0.5, 4.0))


STORIES: Mapping[str, Callable[[_Story, float], None]] = {
    "squall": _squall,
    "strand": _strand,
    "maroon": _maroon,
    "rot_snapshot": _rot_snapshot,
    "full_disk": _full_disk,
}


def direct(schedule: Schedule) -> Schedule:
    """The schedule with the scenario of its seed. A schedule without faults is unchanged."""
    rng = random.Random(f"{schedule.seed}/quorum/directed")
    if not schedule.faults or rng.randrange(ONE_IN):
        return schedule
    story = _Story(rng, schedule)
    tell = STORIES[rng.choice(sorted(STORIES))]
    at = rng.uniform(*FIRST_AT)
    told = []
    while at + LASTS < schedule.seconds:
        before = len(story.faults)
        tell(story, at)
        if len(story.faults) > before:
            told.append((at - BEFORE, at + LASTS))
        at += EVERY + rng.uniform(0.0, 2.0)
    left = [fault for fault in schedule.faults if not any(begin <= fault.at < end for begin, end in told)]
    return replace(
        schedule,
        faults=tuple(sorted((*left, *story.faults), key=lambda fault: fault.at)),
        operations=tuple(sorted((*schedule.operations, *story.operations), key=lambda operation: operation.at)),
    )
