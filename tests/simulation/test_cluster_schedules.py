"""Schedules of whole clusters: drawn, saved, shrunk, and run again.

`test_seeds.py` shows that many of them keep every property.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from jepsen_like.simulator.cluster.directed import direct
from jepsen_like.simulator.cluster.kinds import KINDS
from jepsen_like.simulator.cluster.run import run_schedule
from jepsen_like.simulator.cluster.schedule import OPERATIONS, ClusterSchedule, draw
from jepsen_like.simulator.quorum.schedule import Fault
from jepsen_like.simulator.shards.schedules import from_json
from jepsen_like.simulator.shards.shrink import Shrinker

SECONDS = 60.0
SCHEDULES = sorted((Path(__file__).parent / "cluster_schedules").glob("*.json"))


def test_a_schedule_survives_its_file() -> None:
    schedule = draw(4, SECONDS)
    assert len(schedule.faults) > 0
    assert ClusterSchedule.from_json(schedule.to_json()) == from_json(schedule.to_json()) == schedule
    for text in ("[]", "{}", '{"version": 1}', schedule.to_json().replace('"world": "cluster"', '"world": "moon"')):
        with pytest.raises(ValueError, match="not a"):
            ClusterSchedule.from_json(text)


def test_every_kind_of_fault_and_operation_is_drawn_before_long() -> None:
    schedules = [draw(seed, SECONDS) for seed in range(1, 60)]
    several = {
        "kill_and_back", "power_loss_all", "kill_all", "dark", "cut_one_way",
        "forgotten_tail", "tails_in_a_row", "lagging_successor", "last_member",
    }  # fmt: skip
    others = {
        "cut", "stall_leader", "stall_all_replication", "power_loss_of_leader", "full_disk", "rot_leader",
        "rot_in_service", "fill_disk",
    }  # fmt: skip
    kinds = {fault.kind for schedule in schedules for fault in schedule.faults}
    assert kinds == set(KINDS) - several | others
    assert {operation.kind for schedule in schedules for operation in schedule.operations} == {*OPERATIONS, "crowd"}
    assert {(schedule.voters, schedule.observers) for schedule in schedules} == {(3, 0), (3, 1), (5, 0), (5, 1)}


def test_one_disk_rots_at_most() -> None:
    """As many as `min.insync.replicas` may lose records (S1)."""
    for seed in range(1, 100):
        rots = [fault for fault in direct(draw(seed, SECONDS)).faults if fault.kind.startswith("rot")]
        assert len(rots) <= 1 or {(fault.kind, fault.node) for fault in rots} == {("rot_in_service", rots[0].node)}


def test_damage_under_a_running_process_is_scrubbed() -> None:
    for seed in range(1, 100):
        schedule = draw(seed, SECONDS)
        assert any(fault.kind == "rot_in_service" for fault in schedule.faults) == bool(schedule.scrub_seconds)


def test_every_story_is_told_before_long_and_random_faults_give_way_to_it() -> None:
    told = [(schedule, direct(schedule)) for seed in range(1, 60) if (schedule := draw(seed, SECONDS))]
    kinds = {fault.kind for _, schedule in told for fault in schedule.faults} - {
        fault.kind for schedule, _ in told for fault in schedule.faults
    }
    assert kinds == {
        "kill_replica", "slow_replica", "starve_replica", "strand_proposals", "keep_news_from_replica",
        "mute_leader_to_quorum",
    }  # fmt: skip
    operations = {one.kind for _, schedule in told for one in schedule.operations}
    assert operations == {*OPERATIONS, "elect", "rest", "delete_from", "crowd"}
    shares = [schedule is not drawn for drawn, schedule in told]
    assert 0.2 < sum(shares) / len(shares) < 0.5
    for drawn, schedule in told:
        begins = [fault.at for fault in schedule.faults if fault not in drawn.faults]
        left = [fault.at for fault in schedule.faults if fault in drawn.faults]
        assert not any(begin - 0.01 < at < begin + 0.3 for begin in begins for at in left)
    assert direct(draw(2, SECONDS, faulty=False)) == draw(2, SECONDS, faulty=False)


def test_leaving_a_fault_out_leaves_the_rest_unchanged() -> None:
    schedule = draw(9, SECONDS)
    assert draw(9, SECONDS) == schedule
    assert draw(9, SECONDS, faulty=False) == replace(schedule, faults=())


def test_a_schedule_is_shrunk_to_the_cause_of_its_failure() -> None:
    schedule = draw(5, SECONDS)
    needed = (schedule.faults[3], schedule.faults[5])

    def violation(candidate: ClusterSchedule) -> str:
        return "S6: lost" if set(needed) <= set(candidate.faults) else ""

    small = Shrinker(violation).shrink(schedule)
    assert small.faults == needed
    assert small.operations == ()
    assert small.seconds < SECONDS


def test_a_run_is_a_function_of_its_schedule() -> None:
    faults = (Fault(5.0, "power_loss", 1, seconds=0.5), Fault(6.0, "isolate", 0, 0, 1.0))
    schedule = replace(draw(3, 8.0), faults=faults)
    first, second = run_schedule(schedule), run_schedule(ClusterSchedule.from_json(schedule.to_json()))
    assert first.passed, first.violation
    assert (first.trace, first.events, first.faults) == (second.trace, second.events, {"power_loss": 1, "isolate": 1})
    assert first.safety
    assert first.liveness
    assert first.recovered_after > 0


@pytest.mark.parametrize("path", SCHEDULES, ids=lambda path: path.stem)
def test_saved_schedules_keep_every_property(path: Path) -> None:
    """Each once made something fail: a planted bug, or a real one."""
    verdict = run_schedule(ClusterSchedule.from_json(path.read_text()))
    assert verdict.passed, verdict.violation
