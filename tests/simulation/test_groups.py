"""Consumer groups in simulated quorums.

S8 and the single reader are checked after every entry, and progress at the end (S10); each planted bug of groups is
found by the seed that is known to find it.
"""

from __future__ import annotations

import pytest

from jepsen_like.planted.catalogue import BUGS, load_detections, run_planted, search
from jepsen_like.planted.patches import GROUPS
from jepsen_like.simulator.groups.run import run_group_seed
from jepsen_like.simulator.groups.schedule import MEMBER_OPERATIONS
from jepsen_like.simulator.shards.schedules import draw, from_json, run

SECONDS = 12.0
SEEDS = range(1, 5)
MORE_SEEDS = 40
QUICK = [name for name, bug in BUGS.items() if bug.found_by == GROUPS]


def test_groups_keep_every_property_s8() -> None:
    verdicts = [run_group_seed(seed, SECONDS) for seed in SEEDS]
    assert {verdict.seed: verdict.violation for verdict in verdicts if not verdict.passed} == {}
    # The run was not empty.
    assert sum(verdict.calls["group_commits"] for verdict in verdicts) > 8 * len(SEEDS)
    assert sum(verdict.calls["group_grants"] for verdict in verdicts) > 2 * len(SEEDS)
    assert sum(count for verdict in verdicts for count in verdict.faults.values()) > 10 * len(SEEDS)


def test_a_node_on_a_new_disk_catches_up_under_load_and_serves_members_s10() -> None:
    """A voter that lost its disk needs a snapshot. Its members get no answers before it has caught up."""
    verdict = run_group_seed(4882, 60.0)
    assert verdict.passed, verdict.violation


def test_one_schedule_gives_one_trace_from_a_file_too() -> None:
    schedule = draw("groups", 3, 6.0)
    assert {one.kind for one in schedule.operations} & set(MEMBER_OPERATIONS)
    first, second = run(schedule), run(from_json(schedule.to_json()))
    assert first.trace == second.trace
    assert first.passed, first.violation


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_of_groups_is_found(name: str) -> None:
    known = load_detections()[name]
    if not run_planted(BUGS[name], known.seed).violation:
        assert search(BUGS[name], first=known.seed + 1, seeds=MORE_SEEDS) is not None, f"{name} is no longer found"


@pytest.mark.soak
def test_hundreds_of_seeds_keep_every_property() -> None:
    for seed in range(1_000, 1_200):
        verdict = run_group_seed(seed, 30.0)
        assert verdict.passed, verdict.violation
