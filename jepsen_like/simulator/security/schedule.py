"""The schedule of a run with changes of security: the quorum's schedule of the same seed, with an administrator's
operations and wrong clocks.
"""

from __future__ import annotations

import random
from dataclasses import replace

from jepsen_like.simulator.quorum.schedule import SETTLE_SECONDS, Operation, Schedule
from jepsen_like.simulator.quorum.schedule import draw as draw_quorum
from jepsen_like.simulator.quorum.wrong_clocks import draw_wrong_clocks

USERS = 3
SECURITY_OPERATIONS = (
    "put_user",
    "put_user",
    "remove_user",
    "put_tokens",
    "put_tokens",
    "put_tokens",
    "remove_token",
    "remove_token",
    "change_rules",
    "refused_changes",
    "bootstrap",
)


def draw(seed: int, seconds: float, *, faulty: bool = True) -> Schedule:
    """Draw the schedule of a seed."""
    schedule = draw_quorum(seed, seconds, faulty=faulty)
    rng = random.Random(f"{seed}/security/operations")
    operations = list(schedule.operations)
    if rng.random() < 0.7:
        # A secure cluster begins so; in the others an administrator's change may be the first.
        operations += [Operation(SETTLE_SECONDS + 0.01 * node, "bootstrap", node) for node in range(schedule.nodes)]
    mean = rng.choice((0.1, 0.3, 1.0))
    at = SETTLE_SECONDS
    while (at := at + rng.expovariate(1 / mean)) < seconds:
        kind, node, user = rng.choice(SECURITY_OPERATIONS), rng.randrange(schedule.nodes), rng.randrange(USERS)
        operations.append(Operation(round(at, 4), kind, node, user))
    faults = schedule.faults
    if faulty:
        rng = random.Random(f"{seed}/security/wrong-clocks")
        faults += draw_wrong_clocks(rng, schedule.voters, schedule.nodes, seconds)
    return replace(
        schedule,
        operations=tuple(sorted(operations, key=lambda one: one.at)),
        faults=tuple(sorted(faults, key=lambda one: one.at)),
    )
