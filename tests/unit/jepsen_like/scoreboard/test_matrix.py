"""The choice of the next run, parallel runs, and the state after an interrupted sitting."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from jepsen_like.chaos import chaos, running
from jepsen_like.chaos.matrix import Sitting
from jepsen_like.run_records import Outcome, RunPlan
from jepsen_like.runs.interpreter import RunFailed
from jepsen_like.scoreboard.cells import CELLS, ROUNDS_A_RUN, cell
from jepsen_like.scoreboard.json_lines import append_line
from jepsen_like.scoreboard.scoreboard import Score, scores

MATRIX = "jepsen_like.chaos.matrix"


def outcome(plan: RunPlan, valid: bool | None = True, seconds: float | None = None) -> Outcome:
    return Outcome(
        plan=plan, commit="here", started="2026-01-01T00:00:00", seconds=plan.seconds if seconds is None else seconds,
        operations={"ok": 1}, faults={}, void={}, valid=valid, anomalies={}, recovery_s=1.0,
        rounds=plan.rounds if valid else 0,
    )  # fmt: skip


def nothing() -> dict[str, Score]:
    return scores([], lambda commit, clean: True)


def test_each_cell_once_and_then_the_least_advanced() -> None:
    sitting = Sitting(["R1", "R2", "R3"], 60.0, 100.0)
    found = nothing()
    drawn = [sitting.next_plan(found, seed) for seed in range(4)]
    assert [plan.cell for plan in drawn if plan] == ["R1", "R2", "R3", "R1"]
    found["R1"].seconds_now = found["R2"].seconds_now = 500.0
    fifth = sitting.next_plan(found, 5)
    assert fifth is not None and fifth.cell == "R3" and fifth.seed == 5


def test_a_run_in_progress_is_not_started_again() -> None:
    """Two lanes: the last piece of a cell is run by one of them."""
    sitting = Sitting(["R0"], 60.0, 100.0)
    found = nothing()
    found["R0"].seconds_now = CELLS["R0"].seconds - 10
    first = sitting.next_plan(found, 1)
    assert first is not None and sitting.next_plan(found, 2) is None
    sitting.ended(first)
    assert sitting.next_plan(found, 3) is not None, "it was not valid"
    found["R0"].seconds_now = 600.0
    assert Sitting(["R0"], 60.0, 100.0, each=600.0).next_plan(found, 4) is None
    assert Sitting(["R0"], 60.0, 100.0, each=601.0).next_plan(found, 4) is not None


def test_rounds_are_divided() -> None:
    sitting = Sitting(["R11"], 60.0, 100.0, rounds=25)
    found = nothing()
    plans = [sitting.next_plan(found, 1), sitting.next_plan(found, 2), sitting.next_plan(found, 3)]
    assert [plan and plan.rounds for plan in plans] == [ROUNDS_A_RUN, ROUNDS_A_RUN, 5]
    assert sitting.next_plan(found, 4) is None
    for plan in plans:
        assert plan is not None and plan.seconds == CELLS["R11"].seconds
        sitting.ended(plan)
    found["R11"].rounds_now = 25
    assert sitting.next_plan(found, 5) is None
    without = Sitting(["R11"], 60.0, 100.0)
    assert without.next_plan(found, 6) is not None, "the cell wants a hundred"


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for `raftlog`: prints an outcome for the given cell, and appends it."""
    script = tmp_path / "program.py"
    script.write_text(
        "import sys, pathlib\n"
        "from jepsen_like.scoreboard.cells import cell\n"
        "from jepsen_like.scoreboard.json_lines import append_line\n"
        "from jepsen_like.run_records import Outcome\n"
        "import msgspec\n"
        "given = dict(zip(sys.argv[3::2], sys.argv[4::2]))\n"
        "if given['--cell'] == 'R3': sys.exit('the machine is not up to it')\n"
        "plan = cell(given['--cell']).plan(seed=int(given['--seed']), seconds=float(given['--time']),"
        " rounds=int(given.get('--rounds', 0)))\n"
        "one = Outcome(plan=plan, commit='here', started='2026-01-01T00:00:00', seconds=9_000.0, operations={},"
        " faults={}, void={}, valid=given['--cell'] != 'R2', anomalies={}, recovery_s=None, rounds=plan.rounds)\n"
        "append_line(pathlib.Path(given['--runs']) / 'results.jsonl', one)\n"
        "sys.stdout.buffer.write(msgspec.json.encode(one))\n"
    )
    monkeypatch.setattr(sys.modules[MATRIX], "PROGRAM", (sys.executable, str(script)))
    monkeypatch.setattr(sys.modules["jepsen_like.chaos.board"], "same_product", lambda: lambda commit, clean: True)
    return tmp_path / "runs"


def call(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(chaos, ["matrix", *arguments, "-o", "json"], catch_exceptions=False)
    return done.exit_code, done.output


def test_several_clusters_in_parallel_until_all_have_their_targets(program: Path) -> None:
    code, told = call("--cells", "R10,R11", "--parallel", "3", "--rounds", "20", "--runs", str(program))
    assert code == 0, told
    lines = (program / "results.jsonl").read_bytes().splitlines()
    assert len(lines) == 4, "two times ten rounds of each"
    code, told = call("--cells", "R10,R11", "--parallel", "3", "--rounds", "20", "--runs", str(program))
    assert code == 0 and len((program / "results.jsonl").read_bytes().splitlines()) == 4, "nothing was left to do"


def test_a_run_that_is_not_valid_ends_all(program: Path) -> None:
    code, _ = call("--cells", "R2", "--parallel", "2", "--time", "10", "--runs", str(program))
    assert code == 1
    assert 1 <= len((program / "results.jsonl").read_bytes().splitlines()) <= 2


def test_runs_without_a_verdict_end_a_sitting(program: Path) -> None:
    code, told = call("--cells", "R3", "--parallel", "2", "--time", "10", "--runs", str(program))
    assert code == 1 and "runs in a row failed to test their cluster" in told


def test_a_single_lane_continues_after_a_run_without_a_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[RunPlan] = []

    def make_run(plan: RunPlan, layout: str, runs: Path) -> Outcome:
        made.append(plan)
        if len(made) in (1, 3, 4, 5):
            raise RunFailed("no")
        append_line(runs / running.RESULTS, outcome(plan))
        return outcome(plan)

    monkeypatch.setattr(sys.modules[MATRIX], "make_run", make_run)
    monkeypatch.setattr(sys.modules["jepsen_like.chaos.board"], "same_product", lambda: lambda commit, clean: True)
    code, told = call("--cells", "R1", "--runs", str(tmp_path))
    assert code == 1 and "3 runs in a row" in told and len(made) == 5
    assert made[0] == cell("R1").plan(seed=made[0].seed, seconds=60)
