"""Aimed faults: short stories in which a known kind of bug shows, told beside the swarm's in a third of the seeds.

A swarm meets nearly everything, but not five things in one order. Each story here is such an order, told at random
moments of a run, with what else is drawn at random left as it is; the swarm's own faults give way to it for its time.

* *squall*: elections while every other message is lost and most come twice, so that votes are few and come again.
* *strand*: a leader of five goes on with one follower, is deposed, and leads again while what that follower told it in
  its first term comes once more; the follower hears nothing of the second.
* *maroon*: a leader that nobody hears changes the voters, is deposed, and follows; then half of the voters are cut off
  with it, which by the voters that it had named would be enough.
* *rot_snapshot*: a bit flips where a stored snapshot says of which entry it is.
* *full_disk*: disks are full for a while, of a few nodes or of all.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from .schedule import LEADER, Fault, Operation, Schedule

FIRST_AT = (4.0, 6.0)
"""Seconds into the run, from and to, of the first story..."""
EVERY = 9.0
"""...and between two of them."""
BEFORE, LASTS = 2.5, 6.0
"""Seconds before a story and of it, in which the swarm rests."""
ONE_IN = 2
"""So many seeds have one told, where it fits their world."""
FOR_GOOD = ("rot", "lose_end", "rewind", "rot_snapshot", "replace_disk")
"""Faults of which a run has one: with the other voters there is a majority."""


@dataclass(slots=True)
class _Story:
    """What is told in one run."""

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
    if story.schedule.voters > 3:  # of three a leader with one follower is a majority
        seconds = story.rng.uniform(0.7, 1.0)
        story.fault(at, "strand", story.rng.randrange(story.schedule.nodes), seconds)
        story.grants(at + 0.1, 6, 0.03)
        story.grants(at + seconds + 0.55, 20, 0.03)


def _maroon(story: _Story, at: float) -> None:
    """From an even number of voters: a majority of one voter less is then only half of them."""
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
    """The schedule, with the stories of its seed. One without faults stays without."""
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
