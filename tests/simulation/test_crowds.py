"""Crowds of short-lived producers in simulated clusters: they arrive, are served, and pause for long enough."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from jepsen_like.simulator.brokers.history import Fate
from jepsen_like.simulator.cluster.run import SimulatedWorld, in_a_hurry
from jepsen_like.simulator.cluster.schedule import ClusterSchedule, draw
from jepsen_like.simulator.load.crowds import DELIVERY_TIMEOUT, FIRST_ID

CROWDED = 31
"""A seed whose schedule has crowds, and brokers with little room."""


def crowds(schedule: ClusterSchedule) -> int:
    return sum(operation.kind == "crowd" for operation in schedule.operations)


def test_a_sixth_of_the_schedules_has_crowds_and_brokers_that_expire_producers() -> None:
    crowded = [one for one in (draw(seed, 40.0) for seed in range(1, 121)) if crowds(one)]
    assert 12 <= len(crowded) <= 28
    assert all(one.producer_expiration_ms < 10_000 for one in crowded)
    assert {one.producer_state_bytes for one in crowded} == {64 * 1024, 16 * 1024 * 1024}


def test_members_of_a_crowd_meet_every_outcome_without_faults() -> None:
    """S1 holds in the run. Most are served; for a producer that paused longer than brokers keep its state, the outcome
    is unknown; one that found no room within its time was certainly not appended."""
    schedule = replace(draw(CROWDED, 14.0), faults=())
    with in_a_hurry(schedule):
        world = SimulatedWorld(schedule)
        world.run()
        world._run_until(world.heap.now + 2 * DELIVERY_TIMEOUT)
    members = [send for send in world.history.sends if send.producer >= FIRST_ID]
    fates = Counter(send.fate for send in members)
    assert len(members) > 300
    assert fates[Fate.OK] > len(members) // 2 and not fates[None]
    assert fates[Fate.INFO] > 0 and fates[Fate.FAIL] > 0
    values = {value for partition in world.truth.partitions.values() for value in partition.log.offsets}
    assert values and values.isdisjoint(value for send in members if send.fate is Fate.FAIL for value in send.values)
