"""Wall clocks that are wrong by days: which nodes have one, and when they jump. The jumps are faults of a schedule, so
a failing schedule can be shrunk.

A minority of the voters is wrong from before the first start, and any node that does not vote may be: expiry goes by a
time that a majority agrees on, and everything that a run makes is too young to expire.
"""

from __future__ import annotations

import random

from .schedule import Fault

OFTEN = 0.6
"""Share of the schedules with wrong clocks."""

DAY_SECONDS = 86_400.0


def draw_wrong_clocks(rng: random.Random, voters: int, nodes: int, seconds: float) -> tuple[Fault, ...]:
    """`voters`: the number of voters; they have the lowest node numbers."""
    if rng.random() >= OFTEN:
        return ()
    wrong = rng.sample(range(voters), (voters - 1) // 2)
    wrong += [node for node in range(voters, nodes) if rng.random() < 0.5]
    faults = []
    for node in wrong:
        times = [0.0, *(rng.uniform(0.0, seconds) for _ in range(rng.choice((0, 0, 1, 3))))]
        for at in sorted(times):
            leap = rng.choice((-1, 1)) * rng.uniform(8.0, 40.0) * DAY_SECONDS
            faults.append(Fault(round(at, 4), "wall_clock_jump", node, number=round(leap)))
    return tuple(faults)
