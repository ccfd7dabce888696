"""A hundred simulated clusters, with sixty virtual seconds of faults each.

Topics are created, moved, emptied and deleted; S1-S9 are checked after every event, S10 at the end. The seeds run in as
many processes as there are cores. A failing seed prints its violation; `make sim SEED=n` shows the trace that led to
it.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import weakref
from concurrent.futures import ProcessPoolExecutor

import pytest

from jepsen_like.simulator.cluster.run import SimulatedWorld, Verdict, run_seed, run_world
from jepsen_like.simulator.cluster.schedule import ClusterSchedule, draw

SECONDS = 60.0
SEEDS = range(1, 101)
SOAK_SEEDS = range(1_000, 2_000)


def run(seed: int) -> Verdict:
    return run_seed(seed, SECONDS)


def run_all(seeds: range) -> list[Verdict]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=os.cpu_count() or 1, mp_context=context) as pool:
        return list(pool.map(run, seeds))


def test_a_hundred_seeds_keep_every_property() -> None:
    verdicts = run_all(SEEDS)
    assert {verdict.seed: verdict.violation for verdict in verdicts if not verdict.passed} == {}
    assert all(verdict.safety and verdict.liveness for verdict in verdicts)
    # The runs were not empty: every possible event of a cluster has happened.
    operations = {name for verdict in verdicts for name, count in verdict.operations.items() if count}
    assert operations >= {
        "create", "delete", "recreate", "add_partitions", "reassign", "drain", "delete_records",
        "alter_topic", "send_again", "seek", "elect", "rest", "delete_from",
        "found_by_time", "deletions_answered", "duplicates_answered",
    }  # fmt: skip
    faults = {name for verdict in verdicts for name in verdict.faults}
    assert faults >= {
        "kill", "kill_leader", "power_loss", "crash_in_disk_operation", "failed_fsync", "slow_disk", "clean_stop",
        "stall", "cut", "isolate", "isolate_leader", "deafen", "cut_off_clients", "mute_to_clients",
        "reset_connections", "wall_clock_jump", "rot", "rot_leader", "full_disk", "stall_replication", "stall_leader",
        "stall_all_replication", "power_loss_of_leader", "rot_in_service", "kill_replica", "slow_replica",
        "starve_replica", "strand_proposals", "keep_news_from_replica", "mute_leader_to_quorum",
    }  # fmt: skip
    # And every check had something to check.
    checks = {name for verdict in verdicts for name, count in verdict.checks.items() if count}
    assert checks >= {
        "elected", "recovery elections", "losses reported", "joined", "below the minimum", "counted beyond the ISR",
        "members of the commit set alone", "members below a promised start", "segment compacted", "replica offline",
        "rotted in service", "scrubber found damage", "damage found", "replica repairs itself",
    }  # fmt: skip


@pytest.mark.parametrize("seed", [3, 4])
def test_one_seed_and_one_code_give_one_trace(seed: int) -> None:
    first, second = run_seed(seed, 20.0), run_seed(seed, 20.0)
    assert first.trace == second.trace
    assert first.events == second.events


def test_without_faults_every_batch_is_acknowledged_and_read() -> None:
    verdict = run_seed(1, 20.0, faulty=False)
    assert verdict.passed, verdict.violation
    assert verdict.sends["ok"] > 20
    assert verdict.sends["open"] == 0
    assert verdict.reads > 20


def test_a_world_leaves_nothing_behind() -> None:
    """Ten thousand runs in one process take no more memory than one."""
    worlds: list[weakref.ref[SimulatedWorld]] = []

    def make(schedule: ClusterSchedule) -> SimulatedWorld:
        world = SimulatedWorld(schedule)
        worlds.append(weakref.ref(world))
        return world

    for seed in (1, 2):
        assert run_world(make, draw(seed, 3.0, faulty=False)).passed
    gc.collect()
    assert [world() for world in worlds] == [None, None]


@pytest.mark.soak
def test_a_thousand_seeds_keep_every_property() -> None:
    assert {verdict.seed: verdict.violation for verdict in run_all(SOAK_SEEDS) if not verdict.passed} == {}
