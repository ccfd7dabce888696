"""Directed scenarios: short sequences of faults on one partition, each aimed at a known kind of bug, in a
third of the seeds.

Random faults reach nearly everything, but seldom four events on one partition in one order and within a second. Each
scenario is such a sequence, repeated at random moments of a run; the random faults pause meanwhile. The replicas of the
partition are known only at that moment, so a scenario names places (`roles.py`).

* *a slow fsync*: one follower receives nothing and is elected; the others truncate, and their fsync of the truncated
  bytes is still in flight when other bytes have replaced them.
* *no quorum*: a follower that was down is proposed for the ISR at the moment when the quorum loses its majority, for
  longer than the leader waits for the answer; then the quorum returns, with the proposal.
* *late news*: leadership moves away and back, while one follower receives only the old epoch's leader and no metadata.
* *another life*: a follower that was down is proposed for the ISR; the proposal is delayed, and by then the follower
  has died and restarted as another process, which has not reported yet.
* *an old start*: records are deleted while a fully caught-up follower is down; it returns with a slow disk.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from jepsen_like.simulator.quorum.schedule import Fault

from .operations import about_place
from .schedule import ClusterSchedule, Operation

FIRST_AT = (5.0, 7.0)
"""Range of the first scenario's time, in seconds into the run."""
BEFORE = 1.0
"""Seconds before a scenario and between two of them; the random faults pause before one."""
ONE_IN = 3
"""One in this number of seeds has a scenario."""
LEADER = 0
"""The place of the leader; the followers of most topics are 1 and 2."""


@dataclass(slots=True)
class _Story:
    """The scenario of one run; each repetition takes another partition."""

    rng: random.Random
    partition: int = 0
    faults: list[Fault] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)

    def fault(self, at: float, kind: str, place: int = 0, *, seconds: float) -> None:
        self.faults.append(Fault(round(at, 4), kind, 0, place, round(seconds, 4), self.partition))

    def operation(self, at: float, kind: str, place: int = 0) -> None:
        self.operations.append(Operation(round(at, 4), kind, about_place(self.partition, place)))

    def followers(self) -> tuple[int, int]:
        """Return the places of two followers, in random order."""
        return self.rng.choice(((1, 2), (2, 1)))


def _slow_fsync(story: _Story, at: float) -> float:
    other, starved = story.followers()
    slow = story.rng.choice((LEADER, other))
    seconds = story.rng.uniform(0.5, 0.9)
    story.fault(at, "slow_replica", slow, seconds=seconds)
    story.fault(at, "starve_replica", starved, seconds=0.8 * seconds)
    story.operation(at + 0.75 * seconds, "elect", starved)
    return 2.0


def _comes_back(story: _Story, at: float, away: int) -> float:
    """Kill a replica until it has left the ISR, and restart it with a slow disk; return when it is proposed again."""
    story.fault(at, "kill_replica", away, seconds=1.3)
    story.fault(at + 1.25, "slow_replica", away, seconds=0.6)
    return at + 2.2


def _no_quorum(story: _Story, at: float) -> float:
    """The proposal is made before the quorum's leader has noticed its isolation; then the follower falls behind."""
    away, _ = story.followers()
    proposed = _comes_back(story, at, away)
    story.fault(proposed - story.rng.uniform(0.1, 0.4), "strand_proposals", seconds=6.2)
    story.fault(proposed + 0.1, "starve_replica", away, seconds=7.0)
    return 9.5


def _late_news(story: _Story, at: float) -> float:
    other, late = story.followers()
    story.fault(at, "keep_news_from_replica", late, seconds=1.3)
    story.operation(at + 0.05, "elect", other)
    # The first follower is mostly the former leader.
    story.operation(at + story.rng.uniform(0.1, 0.25), "elect", 1)
    return 3.0


def _another_life(story: _Story, at: float) -> float:
    """The quorum receives the leader again before its session expires, and after the follower's registration."""
    away, _ = story.followers()
    proposed = _comes_back(story, at, away)
    story.fault(proposed - 0.25, "mute_leader_to_quorum", seconds=0.8)
    again = proposed + story.rng.uniform(0.0, 0.15)
    story.fault(again, "kill_replica", away, seconds=0.02)
    story.fault(again, "starve_replica", away, seconds=1.5)
    return 4.5


def _old_start(story: _Story, at: float) -> float:
    away, _ = story.followers()
    story.operation(at, "rest")
    story.fault(at + 0.6, "kill_replica", away, seconds=1.7)
    story.operation(at + 2.0, "delete_from")
    story.fault(at + 2.2, "slow_replica", away, seconds=1.0)
    return 5.0


STORIES: Mapping[str, Callable[[_Story, float], float]] = {
    "slow_fsync": _slow_fsync,
    "no_quorum": _no_quorum,
    "late_news": _late_news,
    "another_life": _another_life,
    "old_start": _old_start,
}
"""Name → the function that adds the scenario at a time and returns its duration in seconds."""


def direct(schedule: ClusterSchedule) -> ClusterSchedule:
    """Return the schedule with the scenario of its seed. A schedule without faults stays as it is."""
    rng = random.Random(f"{schedule.seed}/cluster/directed")
    if not schedule.faults or rng.randrange(ONE_IN):
        return schedule
    story = _Story(rng)
    tell = STORIES[rng.choice(sorted(STORIES))]
    at = rng.uniform(*FIRST_AT)
    told = []
    while at + 2.0 < schedule.seconds:
        story.partition = rng.randrange(1 << 20)
        lasts = tell(story, at)
        told.append((at - BEFORE, at + lasts))
        at += lasts + BEFORE * rng.uniform(1.0, 3.0)
    left = [fault for fault in schedule.faults if not any(begin <= fault.at < end for begin, end in told)]
    faults = [*left, *(fault for fault in story.faults if fault.at < schedule.seconds)]
    operations = [*schedule.operations, *(one for one in story.operations if one.at < schedule.seconds)]
    return replace(
        schedule,
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
        operations=tuple(sorted(operations, key=lambda operation: operation.at)),
    )
