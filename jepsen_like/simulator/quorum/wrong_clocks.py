"""Wall clocks that are wrong by days: which nodes have one, and when they leap. Faults of a schedule, so that a failing
one is made smaller.

A minority of the voters is wrong from before the first start, and so may be whoever does not vote: all that expires
does so by a time on which the majority agrees, and everything that a run makes is young.
"""

from __future__ import annotations

import random

from .schedule import Fault

OFTEN = 0.6
"""Of all schedules."""

DAY_SECONDS = 86_400.0


def draw_wrong_clocks(rng: random.Random, voters: int, nodes: int, seconds: float) -> tuple[Fault, ...]:
    """Voters are the first so many of the nodes."""
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
