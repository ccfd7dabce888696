"""The accumulated results of the fault suite's cells, and the value of a run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jepsen_like.checkers.verdict import Verdict
from jepsen_like.clusters.capabilities import LOOPBACK_GIVE, NAMESPACES_GIVE
from jepsen_like.nemeses.catalogue import RECIPES
from jepsen_like.nemeses.make import NAMES, make
from jepsen_like.run_records import Fault, Outcome
from jepsen_like.runs.runner import Worked, count, outcome
from jepsen_like.scoreboard.cells import CELLS, LOOPBACK, REFERENCES, cell
from jepsen_like.scoreboard.json_lines import append_line as append
from jepsen_like.scoreboard.other_rows import planted, simulated
from jepsen_like.scoreboard.scoreboard import COLUMNS, due, read_results, row, scores, table
from jepsen_like.simulator.shards.shard import Summary
from jepsen_like.workloads import WORKLOADS
from raftlog.errors import InvalidRequest


def result(name: str, valid: bool | None, *, commit: str = "here", seconds: float = 60.0, **more: Any) -> Outcome:
    given: dict[str, Any] = {
        "operations": {"ok": 10, "fail": 1, "info": 2},
        "faults": {"kill": 3},
        "void": {},
        "anomalies": {},
        "recovery_s": 1.5,
        **more,
    }
    plan = cell(name).plan(seed=1, seconds=seconds)
    return Outcome(plan=plan, commit=commit, started="2026-01-01T00:00:00", seconds=seconds, valid=valid, **given)


@pytest.mark.parametrize("name", CELLS)
def test_each_cell_can_be_run_on_its_layout(name: str) -> None:
    plan = cell(name).plan(seed=5, seconds=10)
    assert plan.workload in WORKLOADS and plan.nemesis in NAMES
    nemesis = make(plan.nemesis, seed=5, origin_ns=0, options=plan.options)
    given = LOOPBACK_GIVE if cell(name).layout == LOOPBACK else NAMESPACES_GIVE
    assert nemesis.needs <= given
    for member in plan.options.get("nemeses", ()):
        assert RECIPES[member].needs <= given, member
    WORKLOADS[plan.workload].checkers(plan)
    assert set(re.findall(r"J\d", cell(name).reference)) <= REFERENCES.keys()


def test_an_unknown_cell_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="unknown cell 'R99'; cells: R0, R1"):
        cell("R99")


def test_only_passed_runs_are_accumulated_and_only_this_code_is_current() -> None:
    found = scores(
        [
            result("R1", True),
            result("R1", True, commit="before", seconds=100.0, recovery_s=9.0),
            result("R1", None, void={"kill": 2}),
            result("R1", False, commit="before", anomalies={"lost-write": 2}),
            result("R2", False, anomalies={"duplicate": 1}),
            msgspec.structs.replace(result("R2", True), plan=cell("R2").plan(seed=1, seconds=1)),
        ],
        lambda commit, clean: commit == "here",
    )
    one, two = found["R1"], found["R2"]
    assert (one.seconds, one.seconds_now, one.runs, one.passed, one.unknown) == (160.0, 60.0, 4, 2, 1)
    assert (dict(one.anomalies), dict(one.anomalies_now)) == ({"lost-write": 2}, {})
    assert dict(two.anomalies_now) == {"duplicate": 1}
    assert (one.operations["ok"], one.faults["kill"], one.void["kill"], one.worst_recovery_s) == (40, 12, 2, 9.0)
    shown = dict(zip(COLUMNS, row(CELLS["R1"], one), strict=True))
    assert (shown["seconds"], shown["seconds_now"], shown["target_s"]) == (160, 60, "9000")
    assert (shown["anomalies"], shown["void"]) == ("lost-write=2", "kill=2")
    lines = table(found).splitlines()
    assert len(lines) == len(CELLS) + 1 and lines[0] == ",".join(COLUMNS)


def test_a_run_with_other_options_than_its_cells_is_outdated() -> None:
    today = result("R8", True, seconds=50.0)
    other = {**today.plan.options, "retention_past_s": 3_600}
    before = msgspec.structs.replace(today, plan=msgspec.structs.replace(today.plan, options=other))
    read = msgspec.json.decode(msgspec.json.encode(today), type=type(today))
    found = scores([today, before, read], lambda commit, clean: True)["R8"]
    assert (found.seconds, found.seconds_now) == (150.0, 100.0)


def test_the_least_advanced_is_due_first() -> None:
    found = scores([result("R1", True, seconds=900.0), result("R2", True, seconds=9_000.0)], lambda commit, clean: True)
    assert due(found, ["R1", "R2", "R3"]) == ["R3", "R1"]
    assert due(found, ["R1", "R2", "R3"], seconds=10_000) == ["R3", "R1", "R2"]
    assert due(found, ["R1", "R2", "R3"], seconds=600) == ["R3"]


def test_results_are_append_only(tmp_path: Path) -> None:
    file = tmp_path / "runs" / "results.jsonl"
    append(file, result("R1", True))
    with file.open("ab") as torn:
        torn.write(b'{"plan": {"cell"')
    append(file, result("R2", None))
    assert [one.plan.cell for one in read_results([file])] == ["R1", "R2"]
    assert [one.valid for one in read_results([file])] == [True, None]
    other = tmp_path / "other.jsonl"
    other.write_text('{"my": "notes"}\n')
    with pytest.raises(InvalidRequest, match="line 1: not a result of a run"):
        list(read_results([other]))


def test_simulated_results_have_rows_of_their_own() -> None:
    whole = Summary("quorum", 60.0, seeds={1, 2, 3}, virtual_seconds=183.0, violations={2: "S7.1"})
    rows = simulated([whole, Summary("cluster", 2.0, seeds={1})])
    assert [one["cell"] for one in rows] == ["Sim1", "Sim2", "Sim3"]
    assert (rows[0]["runs"], rows[0]["passed"], rows[0]["anomalies_now"], rows[2]["runs"]) == (3, 2, 1, 3)
    told = planted(["a", "b", "c", "d"], ["a", "b", "old"], ["b", "c"])
    assert (told["workload"], told["passed"], told["anomalies_now"]) == ("2 by a seed, 1 by a story", 3, "d")
    assert table({}, [*rows, told]).splitlines()[-1].startswith('P,"2 by a seed, 1 by a story",planted bugs,')


FINE = {"kafka": Verdict(True), "recovery": Verdict(True, {}, {"recovery_s": 2.5})}
BITTEN = Fault(kind="kill", targets=("n1",), began=1, ended=2, evidence={"pids": [1, 2]})
VOID = Fault(kind="kill", targets=("n1",), began=1, ended=2, error="it was gone already")


@pytest.mark.parametrize(
    ("faults", "verdicts", "codes", "not_healed", "valid", "anomalies"),
    [
        ([BITTEN], FINE, {"n1": 0}, "", True, {}),
        ([BITTEN, VOID], FINE, {"n1": 0, "n2": 0}, "", True, {}),
        ([BITTEN], FINE, {"n1": 0, "n2": None}, "", None, {"not-running": 1}),
        ([VOID], FINE, {"n1": 0}, "", None, {}),
        ([], FINE, {"n1": 0}, "", None, {}),
        ([BITTEN], FINE, {"n1": -9}, "", None, {"not-stopped": 1}),
        ([BITTEN], FINE, {"n1": 0}, "n2 does not start", None, {"not-healed": 1}),
        ([BITTEN], {**FINE, "logs": Verdict(None)}, {"n1": 0}, "", None, {}),
        ([], {**FINE, "kafka": Verdict(False, {"lost-write": [{}, {}]})}, {"n1": 0}, "", False, {"lost-write": 2}),
    ],
)
def test_the_value_of_a_run(
    faults: list[Fault],
    verdicts: dict[str, Verdict],
    codes: dict[str, int | None],
    not_healed: str,
    valid: bool | None,
    anomalies: dict[str, int],
) -> None:
    plan = cell("R1").plan(seed=1, seconds=10)
    found = outcome(plan, "now", Worked(10.0, faults, {"ok": 1}, not_healed), verdicts, codes)
    assert (found.valid, found.anomalies, found.recovery_s) == (valid, anomalies, 2.5)
    assert sum(found.faults.values()) == faults.count(BITTEN) and sum(found.void.values()) == faults.count(VOID)


def test_a_cluster_that_did_not_recover_by_itself_has_failed() -> None:
    plan = cell("R15").plan(seed=1, seconds=10)
    worked = Worked(10.0, [BITTEN], {"ok": 1}, "the full disks of n1 did not heal by themselves", stuck=True)
    found = outcome(plan, "now", worked, FINE, {"n1": 0})
    assert found.valid is False and found.anomalies == {"stuck": 1}


def test_a_damaged_file_counts_by_its_kind() -> None:
    faults = [
        Fault(kind="bitflip", targets=("n1",), began=1, ended=2, evidence={"what": what, "file": "x"})
        for what in ("segment", "index", "segment")
    ]
    found = outcome(cell("R12").plan(seed=1, seconds=10), "now", Worked(10.0, faults, {"ok": 1}), FINE, {"n1": 0})
    assert found.faults == {"bitflip:segment": 2, "bitflip:index": 1} and found.valid


def test_a_mix_without_faults_for_long_proves_nothing() -> None:
    plan = cell("R12").plan(seed=1, seconds=10)
    short, long = (outcome(plan, "now", Worked(s, [], {"ok": 1}), FINE, {"n1": 0}) for s in (60.0, 600.0))
    assert short.valid is True and long.valid is None


def test_operations_are_counted_when_they_end() -> None:
    from jepsen_like.histories.history import Operation

    history = [
        Operation(0, 1, "invoke", "send"),
        Operation(1, "nemesis", "info", "kill"),
        Operation(2, 1, "info", "send"),
        Operation(3, 7, "invoke", "send"),
        Operation(4, 7, "ok", "send"),
    ]
    assert count(history) == {"ok": 1, "fail": 0, "info": 1}
