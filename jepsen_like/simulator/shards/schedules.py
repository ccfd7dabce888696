"""Schedules of every kind of world behind one interface: drawn from a seed, read from a file, run, shrunk."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TypeAlias

from jepsen_like.simulator.cluster import schedule as cluster_schedule
from jepsen_like.simulator.cluster.directed import direct as direct_cluster
from jepsen_like.simulator.cluster.schedule import ClusterSchedule
from jepsen_like.simulator.consumers import schedule as consumers_schedule
from jepsen_like.simulator.groups import schedule as group_schedule
from jepsen_like.simulator.library import schedule as client_schedule
from jepsen_like.simulator.quorum import schedule as quorum_schedule
from jepsen_like.simulator.quorum.directed import direct
from jepsen_like.simulator.quorum.run import run_schedule as run_quorum
from jepsen_like.simulator.quorum.schedule import Schedule
from jepsen_like.simulator.security import schedule as security_schedule

from .seeds import Verdict
from .shrink import Shrinker

AnySchedule: TypeAlias = Schedule | ClusterSchedule


def draw(kind: str, seed: int, seconds: float) -> AnySchedule:
    """Return the schedule of a seed for this kind of world: `quorum`, `groups`, `consumers`, `security`, `cluster`,
    `transactions` or `clients`.
    """
    if kind == "transactions":
        return replace(direct_cluster(cluster_schedule.draw(seed, seconds)), transactions=True)
    if kind == "clients":
        return client_schedule.draw(seed, seconds)
    if kind == "groups":
        return group_schedule.draw(seed, seconds)
    if kind == "consumers":
        return consumers_schedule.draw(seed, seconds)
    if kind == "security":
        return security_schedule.draw(seed, seconds)
    if kind == "cluster":
        return direct_cluster(cluster_schedule.draw(seed, seconds))
    return direct(quorum_schedule.draw(seed, seconds))


def from_json(text: str) -> AnySchedule:
    """Return a saved schedule of any kind. Raises `ValueError` for another file."""
    held = json.loads(text)
    if isinstance(held, dict) and held.get("world") == cluster_schedule.WORLD:
        return ClusterSchedule.from_json(text)
    return Schedule.from_json(text)


def run(schedule: AnySchedule) -> Verdict:
    """Run a schedule to its verdict."""
    if isinstance(schedule, Schedule):
        if any(one.kind in group_schedule.MEMBER_OPERATIONS for one in schedule.operations):
            from jepsen_like.simulator.groups.run import run_schedule as run_groups

            return run_groups(schedule)
        if any(one.kind in consumers_schedule.CONSUMER_OPERATIONS for one in schedule.operations):
            from jepsen_like.simulator.consumers.run import run_schedule as run_consumers

            return run_consumers(schedule)
        if any(one.kind in security_schedule.SECURITY_OPERATIONS for one in schedule.operations):
            from jepsen_like.simulator.security.run import run_schedule as run_security

            return run_security(schedule)
        return run_quorum(schedule)
    # Whole brokers are imported only when they run.
    if schedule.clients:
        from jepsen_like.simulator.library.run import run_schedule as run_clients

        return run_clients(schedule)
    if schedule.transactions:
        from jepsen_like.simulator.transactions.run import run_schedule as run_transactions

        return run_transactions(schedule)
    from jepsen_like.simulator.cluster.run import run_schedule

    return run_schedule(schedule)


def shrink(shrinker: Shrinker, schedule: AnySchedule) -> AnySchedule:
    """Return the smallest schedule that fails in the same way; see `Shrinker.shrink`."""
    if isinstance(schedule, Schedule):
        return shrinker.shrink(schedule)
    return shrinker.shrink(schedule)
