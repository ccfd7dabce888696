"""HTTP consumers in simulated quorums.

S8 is checked after every entry, lease, commit and answer, and progress at the end (S10); each planted bug of HTTP
consumers is found by the seed that is known to find it.
"""

from __future__ import annotations

import pytest

from jepsen_like.planted.catalogue import BUGS, load_detections, run_planted, search
from jepsen_like.planted.patches import CONSUMERS
from jepsen_like.simulator.consumers.run import run_consumers_seed
from jepsen_like.simulator.consumers.schedule import CONSUMER_OPERATIONS
from jepsen_like.simulator.shards.schedules import draw, from_json, run

SECONDS = 12.0
SEEDS = range(1, 5)
MORE_SEEDS = 40
QUICK = [name for name, bug in BUGS.items() if bug.found_by == CONSUMERS]


def test_consumers_keep_every_property_s8() -> None:
    verdicts = [run_consumers_seed(seed, SECONDS) for seed in SEEDS]
    assert {verdict.seed: verdict.violation for verdict in verdicts if not verdict.passed} == {}
    # The run was not empty.
    for what in ("deliveries", "not_delivered", "take_overs", "empty_commits"):
        assert sum(verdict.calls[what] for verdict in verdicts) > 5 * len(SEEDS), what
    assert sum(count for verdict in verdicts for count in verdict.faults.values()) > 5 * len(SEEDS)


def test_many_records_of_one_partition_are_read_in_time() -> None:
    """S10. With a few records in each answer, 281 of them took more than the minute that the world waits."""
    verdict = run_consumers_seed(828, 15.0)
    assert verdict.passed, verdict.violation


def test_one_schedule_gives_one_trace_from_a_file_too() -> None:
    schedule = draw("consumers", 3, 6.0)
    assert {one.kind for one in schedule.operations} & set(CONSUMER_OPERATIONS)
    first, second = run(schedule), run(from_json(schedule.to_json()))
    assert first.trace == second.trace
    assert first.passed, first.violation


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_of_consumers_is_found(name: str) -> None:
    known = load_detections()[name]
    if not run_planted(BUGS[name], known.seed).violation:
        assert search(BUGS[name], first=known.seed + 1, seeds=MORE_SEEDS) is not None, f"{name} is no longer found"


@pytest.mark.soak
def test_hundreds_of_seeds_keep_every_property() -> None:
    for seed in range(1_000, 1_200):
        verdict = run_consumers_seed(seed, 30.0)
        assert verdict.passed, verdict.violation
