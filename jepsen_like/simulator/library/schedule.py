"""The schedule of a run with the library's clients: a cluster's faults with other operations and directed scenarios.

The faults are a cluster's except those that damage or fill a disk. Topics are deleted and recreated under the same
names far more often than by any user; members crash, leave and hang. In two of three schedules a scenario is repeated:
a node is isolated from the other nodes but not from clients, meanwhile a topic is recreated, and answers of some leader
are lost, so clients ask for descriptions and may ask the isolated node, which is behind.

In odd seeds there is a third topic name, and members that transform records in transactions.
"""

from __future__ import annotations

import random
from dataclasses import replace

from jepsen_like.simulator.cluster import schedule as cluster_schedule
from jepsen_like.simulator.cluster.schedule import CREATE_AT, SETTLE_SECONDS, ClusterSchedule, Operation
from jepsen_like.simulator.quorum.schedule import Fault

OPERATIONS = ("recreate", "recreate", "recreate", "delete", "create", "add_partitions", "reassign", "elect")
MEMBER_OPERATIONS = ("member_crashes", "member_leaves", "process_hangs")
LEFT_OUT = ("rot", "rot_leader", "rot_in_service", "full_disk")
STORIES_FROM = 8.0


def draw(seed: int, seconds: float, *, faulty: bool = True) -> ClusterSchedule:
    """Draw the schedule of a seed."""
    base = cluster_schedule.draw(seed, seconds, faulty=faulty)
    rng = random.Random(f"{seed}/clients/schedule")
    operations = _operations(rng, seconds, 3 if seed % 2 else 2)
    faults = [one for one in base.faults if one.kind not in LEFT_OUT]
    if faulty and rng.random() < 2 / 3:
        told_faults, told_operations = _stories(rng, base, seconds)
        if rng.random() < 0.5:
            faults = []  # only the scenario
        faults += told_faults
        operations += told_operations
    return replace(
        base,
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
        operations=tuple(sorted(operations, key=lambda operation: operation.at)),
        scrub_seconds=0.0,
        clients=True,
    )


def _operations(rng: random.Random, seconds: float, names: int) -> list[Operation]:
    operations = [Operation(CREATE_AT, "create", rng.randrange(1 << 30)) for _ in range(names)]
    for kinds, means in ((OPERATIONS, (2.0, 4.0, 8.0)), (MEMBER_OPERATIONS, (4.0, 10.0))):
        at, mean = SETTLE_SECONDS, rng.choice(means)
        while True:
            at += rng.expovariate(1 / mean)
            if at >= seconds:
                break
            operations.append(Operation(round(at, 4), rng.choice(kinds), rng.randrange(1 << 30)))
    # Create a topic again under any name that has none, so that clients always have work.
    operations += [Operation(at, "create", rng.randrange(1 << 30)) for at in range(8, int(seconds), 8)]
    return operations


def _stories(rng: random.Random, schedule: ClusterSchedule, seconds: float) -> tuple[list[Fault], list[Operation]]:
    faults: list[Fault] = []
    operations: list[Operation] = []
    at = STORIES_FROM
    while at + 4.0 < seconds:
        number, away = rng.randrange(1 << 30), rng.uniform(5.0, 10.0)
        stale = rng.randrange(schedule.nodes)
        kind = rng.choice(("isolate_leader", "isolate", "isolate", "stall"))
        faults.append(Fault(round(at, 4), kind, stale, 0, round(away, 4), number))
        recreated = at + rng.uniform(0.1, 1.5)
        operations.append(Operation(round(recreated, 4), "recreate", rng.randrange(1 << 30)))
        for _ in range(rng.choice((1, 2, 4))):
            lost = recreated + rng.uniform(0.3, away - 1.5)
            other = rng.randrange(schedule.nodes)
            loses = rng.choice(("mute_to_clients", "kill", "kill_leader", "kill_leader", "cut_off_clients"))
            faults.append(
                Fault(round(lost, 4), loses, other, 0, round(rng.uniform(0.1, 2.0), 4), 2 * rng.randrange(1 << 20))
            )
        at += away + rng.uniform(1.0, 4.0)
    return faults, operations
