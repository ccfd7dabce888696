"""The schedule of a run with a consumer group: the quorum's schedule of the same seed with fewer deletions of topics,
and with operations on members.
"""

from __future__ import annotations

import random
from dataclasses import replace

from jepsen_like.simulator.quorum.schedule import SETTLE_SECONDS, Operation, Schedule
from jepsen_like.simulator.quorum.schedule import draw as draw_quorum
from jepsen_like.simulator.quorum.wrong_clocks import draw_wrong_clocks

MEMBERS = 4
MEMBER_OPERATIONS = (
    "member_starts",
    "member_starts",
    "member_crashes",
    "member_is_cut_off",
    "member_hangs",
    "topic_grows",
)
KEPT_DELETIONS = 0.2


def draw(seed: int, seconds: float, *, faulty: bool = True) -> Schedule:
    """Draw the schedule of a seed."""
    schedule = draw_quorum(seed, seconds, faulty=faulty)
    rng = random.Random(f"{seed}/groups/operations")
    operations = [one for one in schedule.operations if one.kind != "delete" or rng.random() < KEPT_DELETIONS]
    operations += [Operation(SETTLE_SECONDS + 0.01 * place, "member_starts", 0, place) for place in range(2)]
    chosen = [kind for kind in MEMBER_OPERATIONS if rng.random() < 0.7] or ["member_crashes"]
    mean = rng.choice((0.5, 1.5, 4.0))
    at = SETTLE_SECONDS
    while (at := at + rng.expovariate(1 / mean)) < seconds:
        kind, node, place = rng.choice(chosen), rng.randrange(schedule.nodes), rng.randrange(MEMBERS)
        operations.append(Operation(round(at, 4), kind, node, place))
    faults = schedule.faults
    if faulty:
        rng = random.Random(f"{seed}/groups/wrong-clocks")
        faults += draw_wrong_clocks(rng, schedule.voters, schedule.nodes, seconds)
    return replace(
        schedule,
        operations=tuple(sorted(operations, key=lambda one: one.at)),
        faults=tuple(sorted(faults, key=lambda one: one.at)),
    )
