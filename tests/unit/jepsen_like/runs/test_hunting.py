"""Planted bugs in real clusters: each has a hunt or a reason, and a hunt reports its finding and its time."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from jepsen_like.chaos import chaos
from jepsen_like.clusters.capabilities import NAMESPACES_GIVE
from jepsen_like.nemeses.catalogue import RECIPES
from jepsen_like.nemeses.make import NONE, make
from jepsen_like.planted.bugs import BUGS
from jepsen_like.planted.patches import REAL
from jepsen_like.planted.real import HUNTS, NOT_HERE
from jepsen_like.run_records import Outcome, RunPlan
from jepsen_like.runs import hunting
from jepsen_like.runs.hunting import counts, found_bugs, hunt, read_hunts
from jepsen_like.runs.interpreter import RunFailed
from jepsen_like.runs.rounds import nemeses_of
from jepsen_like.scoreboard.json_lines import append_line
from jepsen_like.workloads import workload_of
from raftlog.errors import InvalidRequest

BUG = "log_without_fsync"


def test_every_planted_bug_is_hunted_or_has_a_reason() -> None:
    told = (
        "say in jepsen_like/planted/real.py which run of a real cluster finds it, or what it would want to show there"
    )
    assert set(BUGS) - set(HUNTS) - set(NOT_HERE) == set(), told
    assert not set(HUNTS) & set(NOT_HERE) and set(HUNTS) <= set(BUGS)
    assert all(NOT_HERE.values())
    assert {name for name, bug in BUGS.items() if bug.found_by == REAL} <= set(HUNTS), "nobody else looks for them"


@pytest.mark.parametrize("bug", HUNTS)
def test_every_hunt_can_be_run(bug: str) -> None:
    plan = HUNTS[bug].plan(bug, 7)
    workload_of(plan).checkers(plan)
    nemesis = make(plan.nemesis, seed=7, origin_ns=0, options=plan.options)
    assert nemesis.needs <= NAMESPACES_GIVE and plan.planted == bug and plan.cell == ""
    if plan.rounds:
        assert all(RECIPES[name].needs <= NAMESPACES_GIVE for name in nemeses_of(plan))
        assert not plan.options.get("stall_every", plan.workload == "group-offsets"), "clients of rounds cannot stall"
    else:
        assert plan.seconds >= 30 or plan.nemesis == NONE


class Runs:
    """The results of a hunt's runs, one after the other; a second each."""

    def __init__(self, *verdicts: Any) -> None:
        self.verdicts = list(verdicts)
        self.plans: list[RunPlan] = []

    def make(self, plan: RunPlan) -> Outcome:
        self.plans.append(plan)
        told = self.verdicts.pop(0)
        if isinstance(told, Exception):
            raise told
        valid, anomalies = told
        return Outcome(
            plan=plan, commit="here", started="now", seconds=1.0, operations={}, faults={"power": 2}, void={},
            valid=valid, anomalies=anomalies, recovery_s=None,
        )  # fmt: skip

    def clock(self) -> float:
        return float(len(self.plans))


def hunted(runs: Runs, **more: Any) -> hunting.Hunted:
    return hunt(BUG, runs.make, seed=5, clock=runs.clock, **more)


def test_a_hunt_ends_with_the_first_run_that_finds_it() -> None:
    runs = Runs((True, {}), RunFailed("busy"), (False, {"lost-write": 3}))
    found = hunted(runs)
    assert (found.found, found.runs, found.seconds, found.anomalies) == (True, 3, 3.0, {"lost-write": 3})
    assert [plan.seed for plan in runs.plans] == [5, 6, 7] and {plan.planted for plan in runs.plans} == {BUG}
    assert found.faults == {"power": 4} and found.plan == runs.plans[-1]


@pytest.mark.parametrize(
    ("anomaly", "found"), [("not-running", True), ("not-healed", True), ("stuck", True), ("not-stopped", False)]
)
def test_nodes_that_give_up_are_a_finding_and_slow_ones_are_not(anomaly: str, found: bool) -> None:
    assert hunted(Runs((None, {anomaly: 1})), seconds=1).found is found


def test_a_hunt_ends_with_its_time() -> None:
    found = hunted(Runs(*[(True, {})] * 9), seconds=4)
    assert (found.found, found.runs) == (False, 4)
    with pytest.raises(RunFailed, match="busy"):
        hunted(Runs(RunFailed("busy")), seconds=1)


def test_a_control_is_one_run_without_a_bug() -> None:
    runs = Runs((True, {}))
    found = hunted(runs, planted=False)
    assert (found.found, found.planted, runs.plans[0].planted) == (False, False, "")


def test_a_bug_that_cannot_show_is_refused_with_its_reason() -> None:
    with pytest.raises(InvalidRequest, match="ext4 syncs a file's name"):
        hunting.hunt_of("segments_without_folder_fsync")
    with pytest.raises(InvalidRequest, match="unknown planted bug 'rain'"):
        hunting.hunt_of("rain")


def test_a_result_is_valid_while_the_bug_replaces_the_same_code(tmp_path: Path) -> None:
    late = hunted(Runs((True, {}), (False, {"lost-write": 1})))
    soon = hunted(Runs((False, {"lost-write": 1})))
    other = hunting.msgspec.structs.replace(soon, pins=dict.fromkeys(soon.pins, "other"))
    control = hunted(Runs((True, {})), planted=False)
    file = tmp_path / "planted.jsonl"
    for line in (late, soon, other, control):
        append_line(file, line)
    with file.open("ab") as torn:
        torn.write(b'{"bug":')
    lines = read_hunts([file])
    assert lines == [late, soon, other, control] and [counts(one) for one in lines] == [True, True, False, True]
    assert found_bugs(lines) == {BUG: 1.0}
    assert found_bugs([other, control]) == {}
    file.write_text('{"my": "notes"}\n')
    with pytest.raises(InvalidRequest, match="line 1: not a result of a hunt"):
        read_hunts([file])


def test_the_command_continues_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs((False, {"lost-write": 1}), (False, {"duplicate": 1}), (True, {}))
    monkeypatch.setattr(
        sys.modules["jepsen_like.chaos.planted"], "make_run", lambda plan, layout, folder, keep: runs.make(plan)
    )
    two = {BUG: HUNTS[BUG], "resends_are_appended": HUNTS["resends_are_appended"]}
    monkeypatch.setattr("jepsen_like.planted.real.HUNTS", two)

    def call(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(chaos, ["planted", *arguments, "--runs", str(tmp_path)], catch_exceptions=False)
        return done.exit_code, done.output

    code, told = call(BUG)
    assert code == 0 and "lost-write" in told and [plan.planted for plan in runs.plans] == [BUG]
    assert call()[0] == 0 and runs.plans[-1].planted == "resends_are_appended"
    assert call()[0] == 0 and len(runs.plans) == 2, "all were found"
    assert call(BUG, "--control")[0] == 0 and runs.plans[-1].planted == ""
