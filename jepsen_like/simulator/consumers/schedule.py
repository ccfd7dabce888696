"""The schedule of a run with HTTP consumers: the quorum's schedule of the same seed with fewer deletions of topics, and
with requests about consumers at any node.
"""

from __future__ import annotations

import random
from dataclasses import replace

from jepsen_like.simulator.quorum.schedule import SETTLE_SECONDS, Operation, Schedule
from jepsen_like.simulator.quorum.schedule import draw as draw_quorum
from jepsen_like.simulator.quorum.wrong_clocks import draw_wrong_clocks

CONSUMERS = 3
"""Names in the group."""
SHARES = (
    ("consumer_reads", 0.46),
    ("consumer_commits", 0.2),
    ("consumer_commits_by_number", 0.06),
    ("consumer_opens", 0.04),
    ("consumer_is_deleted", 0.015),
    ("records_are_written", 0.2),
    ("topic_grows_for_consumers", 0.025),
)
CONSUMER_OPERATIONS = tuple(kind for kind, _ in SHARES)
KEPT_DELETIONS = 0.1
MEANS = (0.06, 0.12, 0.25)
"""Average seconds between two operations."""


def draw(seed: int, seconds: float, *, faulty: bool = True) -> Schedule:
    """Draw the schedule of a seed."""
    schedule = draw_quorum(seed, seconds, faulty=faulty)
    rng = random.Random(f"{seed}/consumers/operations")
    operations = [one for one in schedule.operations if one.kind != "delete" or rng.random() < KEPT_DELETIONS]
    operations += [Operation(SETTLE_SECONDS + 0.01 * place, "consumer_opens", 0, place) for place in range(CONSUMERS)]
    kinds, shares = zip(*SHARES, strict=True)
    mean = rng.choice(MEANS)
    at = SETTLE_SECONDS
    while (at := at + rng.expovariate(1 / mean)) < seconds:
        kind, node, place = rng.choices(kinds, shares)[0], rng.randrange(schedule.nodes), rng.randrange(CONSUMERS)
        operations.append(Operation(round(at, 4), kind, node, place))
    faults = schedule.faults
    if faulty:
        rng = random.Random(f"{seed}/consumers/wrong-clocks")
        faults += draw_wrong_clocks(rng, schedule.voters, schedule.nodes, seconds)
    return replace(
        schedule,
        operations=tuple(sorted(operations, key=lambda one: one.at)),
        faults=tuple(sorted(faults, key=lambda one: one.at)),
    )
