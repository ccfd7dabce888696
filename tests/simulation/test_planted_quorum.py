"""Each planted bug of the quorum is found by the seed that is known to find it, and nothing is found without the bug.

Changed code draws other numbers: if the known seed no longer finds a bug, a few more are tried before the test fails.
`python -m jepsen_like.planted search NAME` records a new one.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from jepsen_like.planted.bugs import PINNED
from jepsen_like.planted.catalogue import BUGS, Detection, load_detections, run_planted, search
from jepsen_like.planted.patches import SHORT, Outdated, Patch, Planted, check_pins, load_pins, pin_of, plant
from jepsen_like.simulator.quorum.run import run_quorum_seed, run_schedule
from jepsen_like.simulator.quorum.schedule import Schedule

MORE_SEEDS = 12
SOAK_SEEDS = 10_000
SCHEDULES = sorted((Path(__file__).parent / "schedules").glob("planted-*.json"))


QUICK = [name for name, bug in BUGS.items() if bug.found_by == SHORT]


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_is_found(name: str) -> None:
    known = load_detections()[name]
    violation = run_planted(BUGS[name], known.seed).violation
    if not violation:
        assert search(BUGS[name], first=known.seed + 1, seeds=MORE_SEEDS) is not None, f"{name} is no longer found"


def test_the_product_is_restored_afterwards() -> None:
    before = {patch.target: pin_of(patch) for bug in PINNED.values() for patch in bug.patches}
    for bug in PINNED.values():
        with plant(bug):
            for patch in bug.patches:
                assert vars(patch.owner)[patch.name] is patch.by
    assert {patch.target: pin_of(patch) for bug in PINNED.values() for patch in bug.patches} == before == load_pins()
    assert set(load_detections()) >= set(QUICK)
    assert run_quorum_seed(1, 5.0).passed


def module_with(source: str, tmp_path: Path) -> ModuleType:
    path = tmp_path / f"invented_{len(list(tmp_path.iterdir()))}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("invented", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_bug_is_only_planted_in_the_code_that_it_was_written_for(tmp_path: Path) -> None:
    written_for = module_with('def act():\n    """Old words."""\n    return 1\n', tmp_path)
    bug = Planted("invented", "a hole", "a guard", (Patch(written_for, "act", lambda: 2),))
    pins = {bug.patches[0].target: pin_of(bug.patches[0])}
    check_pins(bug, pins)
    with plant(bug, pins):
        assert written_for.act() == 2
    assert written_for.act() == 1
    # Other comments and another layout are the same code; another meaning is not.
    for source, outdated in (
        ('def act():\n    """New words."""\n\n    # Why.\n    return 1\n', False),
        ("def act():\n    return 3\n", True),
        ("def other():\n    return 1\n", True),
    ):
        today = Planted("invented", "a hole", "a guard", (Patch(module_with(source, tmp_path), "act", lambda: 2),))
        if outdated:
            with pytest.raises(Outdated, match=r"invented\.act"):
                check_pins(today, pins)
        else:
            check_pins(today, pins)


@pytest.mark.parametrize("path", SCHEDULES, ids=lambda path: path.stem)
def test_a_saved_schedule_still_finds_its_bug(path: Path) -> None:
    """Latencies and timers are drawn by the schedule's seed, so another seed for them may find it as well."""
    schedule = Schedule.from_json(path.read_text())
    with plant(BUGS[schedule.planted]):
        assert any(not run_schedule(neighbour).passed for neighbour in neighbours(schedule)), (
            f"{path.stem} finds nothing"
        )


def neighbours(schedule: Schedule) -> list[Schedule]:
    return [schedule, *(replace(schedule, seed=seed) for seed in range(1, 40))]


@pytest.mark.soak
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found_by_a_new_search(name: str, request: pytest.FixtureRequest) -> None:
    if "soak" not in request.config.getoption("-m"):
        pytest.skip("a long run: ask for it by -m soak")
    found = search(BUGS[name], first=100_000, seeds=SOAK_SEEDS)
    assert isinstance(found, Detection), f"{name} is not found by {SOAK_SEEDS} seeds"
