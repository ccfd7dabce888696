"""Each planted bug of replication, elections and logs is found by the seed that is known to find it.

The suite runs those that are found soon; the soak searches all of them again. Changed code draws other numbers: if the
known seed no longer finds a bug, a few more are tried before the test fails.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from jepsen_like.planted.catalogue import BUGS, OF_CLUSTERS, Detection, load_detections, run_planted, search
from jepsen_like.planted.patches import CLUSTER, plant
from jepsen_like.planted.stories import STORIES
from jepsen_like.simulator.cluster.run import run_schedule
from jepsen_like.simulator.cluster.schedule import ClusterSchedule

MORE_SEEDS = 12
SOAK_SEEDS = 2_000
SOON = 9.0
"""Virtual seconds of its seed: bugs that show themselves by then are searched in every run of the suite."""

NAMES = [bug.name for bug in OF_CLUSTERS]
QUICK = [bug.name for bug in OF_CLUSTERS if bug.found_by == CLUSTER]
KNOWN = load_detections()
SCHEDULES = sorted((Path(__file__).parent / "cluster_schedules").glob("planted-*.json"))


def found(name: str) -> bool:
    if not run_planted(BUGS[name], KNOWN[name].seed).passed:
        return True
    return search(BUGS[name], first=KNOWN[name].seed + 1, seeds=MORE_SEEDS) is not None


def test_each_bug_has_a_seed_that_finds_it() -> None:
    assert set(KNOWN) >= set(QUICK)
    assert all(KNOWN[name].law for name in QUICK)


def test_a_bug_without_a_known_seed_has_a_story() -> None:
    assert set(STORIES) <= set(NAMES) <= {*KNOWN, *STORIES}


@pytest.mark.parametrize("name", [name for name in QUICK if name in KNOWN and KNOWN[name].virtual_seconds <= SOON])
def test_the_removal_of_a_rule_is_detected(name: str) -> None:
    assert found(name), f"{name} is no longer found"


@pytest.mark.soak
@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_of_a_cluster_is_found(name: str) -> None:
    assert found(name), f"{name} is no longer found"


@pytest.mark.soak
@pytest.mark.parametrize("path", SCHEDULES, ids=lambda path: path.stem)
def test_a_small_schedule_still_finds_its_bug(path: Path) -> None:
    """Latencies are drawn by the schedule's seed, so another seed for them may find it as well."""
    schedule = ClusterSchedule.from_json(path.read_text())
    neighbours = [schedule, *(replace(schedule, seed=seed) for seed in range(1, 20))]
    with plant(BUGS[schedule.planted]):
        assert any(not run_schedule(neighbour).passed for neighbour in neighbours), f"{path.stem} finds nothing"


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_a_planted_bug_is_found_by_a_new_search(name: str, request: pytest.FixtureRequest) -> None:
    if "soak" not in request.config.getoption("-m"):
        pytest.skip("a long run: ask for it by -m soak")
    detection = search(BUGS[name], first=100_000, seeds=SOAK_SEEDS)
    assert isinstance(detection, Detection), f"{name} is not found by {SOAK_SEEDS} seeds"
