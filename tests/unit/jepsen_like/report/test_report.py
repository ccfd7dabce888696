"""The page of a run: the verdict first, and its proof."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import rich_click as click
from click.testing import CliRunner

from jepsen_like import chaos
from jepsen_like.histories.history import Operation, write
from jepsen_like.report.excerpts import excerpts, indexes
from jepsen_like.report.page import render, write_report
from jepsen_like.report.series import ended, quantiles, rates
from jepsen_like.run_records import Fault, Outcome, RunFolder, RunPlan
from jepsen_like.runs.interpreter import RunFailed
from jepsen_like.scoreboard.cells import cell
from jepsen_like.scoreboard.json_lines import append_line
from raftlog.errors import InvalidRequest

SECOND = 1_000_000_000


def history() -> list[Operation]:
    lines = [Operation(0, "suite", "info", "prepared", {"<b>": 1}, 0)]
    for number in range(40):
        began = SECOND + number * SECOND // 4
        kind = "info" if number == 20 else "fail" if number == 21 else "ok"
        value = [["send", "log0/0", number]]
        lines.append(Operation(len(lines), number % 3, "invoke", "send", value, began, "n1"))
        lines.append(Operation(len(lines), number % 3, kind, "send", value, began + SECOND // 10, "n1"))  # type: ignore[arg-type]
    return lines


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "run")
    made.path.mkdir()
    plan = cell("R1").plan(seed=42, seconds=12)
    made.plan.write_bytes(msgspec.json.encode(plan))
    with made.history.open("wb") as file:
        write(file, history())
    faults = [
        Fault(kind="kill", targets=("n1",), began=3 * SECOND, ended=5 * SECOND, evidence={"pids": [17, 18]}),
        Fault(kind="pause", targets=("n2",), began=6 * SECOND, ended=6 * SECOND, error="nothing to see in /proc"),
    ]
    made.faults.write_bytes(b"".join(msgspec.json.encode(fault) + b"\n" for fault in faults))
    lost = {"key": "log0/0", "value": 3, "index": 0, "proof": [8]}
    checkers = {
        "kafka": {"valid": False, "anomalies": {"lost-write": [lost], "int-poll-skip": []}, "measured": {}},
        "logs": {"valid": "unknown", "anomalies": {}, "measured": {"reason": "the checker failed: KeyError()"}},
    }
    made.verdict.write_bytes(msgspec.json.encode({"valid": False, "checkers": checkers}))
    made.outcome.write_bytes(msgspec.json.encode(result(plan)))
    made.node("n1").mkdir(parents=True)
    (made.node("n1") / "log.jsonl").write_text('{"event":"fine"}\n{"event":"INVARIANT <broken>"}\n')
    return made


def result(plan: RunPlan, valid: bool | None = False) -> Outcome:
    return Outcome(
        plan=plan, commit="0123456789ab", started="2026-01-01T00:00:00", seconds=12.0, operations={"ok": 38, "fail": 1},
        faults={"kill": 1}, void={"pause": 1}, valid=valid, anomalies={"lost-write": 1}, recovery_s=None,
    )  # fmt: skip


def test_the_page_shows_the_verdict_and_its_proof(folder: RunFolder) -> None:
    page = write_report(folder).read_text()
    text = re.sub(r"\s+", " ", re.sub(r"<(style|svg).*?</\1>", "", page, flags=re.DOTALL))
    assert '<span class="verdict bad">invalid</span>' in text
    assert "Cell R1." in text and "seed 42" in text and "0123456789ab" in text
    assert "38 ok, 1 fail" in text and "1 kill" in text and "void faults (no proof)</dt><dd>1 pause" in text
    assert "1 lost-write" in text and "the checker failed: KeyError()" in text
    assert "<script" not in page and "http:" not in text and "https:" not in text
    # Three plots; the whole run's timeline, and that of the one excerpt.
    assert page.count("<svg xmlns:xlink") == 3 and page.count('<svg class="timeline"') == 2
    assert page.count('class="bar ok proves"') == 2 and page.count('id="hatched"') == 1
    assert "not yet read" not in page, "no process polled"
    # The operation that proves it from both ends, with its neighbours.
    proving = re.findall(r'class="proves"><td class="number">(\d+)', page)
    assert proving == ["7", "8"]
    assert '<td class="number">5<' in page and '<td class="number">11<' in page and '<td class="number">12<' not in page
    assert "pids" in page and "void nothing to see in /proc" in text
    assert "INVARIANT &lt;broken&gt;" in page and "fine" not in text


def test_a_run_that_did_not_end_has_no_verdict(folder: RunFolder) -> None:
    for file in (folder.outcome, folder.verdict, folder.faults):
        file.unlink()
    page = render(folder)
    assert (
        "interrupted" in page
        and "there is no verdict" in page
        and ">valid<" not in page
        and "None was injected." in page
    )


def test_a_logs_page_shows_unread_records(folder: RunFolder) -> None:
    def with_polls(values: Sequence[int]) -> str:
        lines = history()
        found = {"log0/0": [[value, value] for value in values]}
        lines.append(Operation(len(lines), 0, "invoke", "poll", [["poll"]], 12 * SECOND, "n1"))
        lines.append(Operation(len(lines), 0, "ok", "poll", [["poll", found]], 13 * SECOND, "n1"))
        with folder.history.open("wb") as file:
            write(file, lines)
        return render(folder)

    assert "All were read by the end." in with_polls(range(40))
    page = with_polls(range(38))
    assert "Unread at the end: 2." in page and page.count("<svg xmlns:xlink") == 4


def test_a_run_without_any_operation_has_a_page(folder: RunFolder) -> None:
    with folder.history.open("wb") as file:
        write(file, history()[:1])
    page = render(folder)
    assert '<svg class="timeline"' not in page and "not yet read" not in page


def test_a_folder_of_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="is not the folder of a run"):
        render(RunFolder(tmp_path))


@pytest.mark.parametrize("content", ["[]", '{"checkers": [1]}', '{"checkers": {"kafka": {"valid": 1}}}', "{"])
def test_a_verdict_of_another_shape_is_named(folder: RunFolder, content: str) -> None:
    folder.verdict.write_text(content)
    with pytest.raises(InvalidRequest, match=r"verdict\.json is damaged"):
        render(folder)


def test_a_simulated_worlds_lines_are_on_its_page(folder: RunFolder) -> None:
    assert "Trace of the world" not in render(folder)
    folder.world.write_text("seed=7 ok\nS7 <holds>\n")
    assert "S7 &lt;holds&gt;" in render(folder)


def test_series() -> None:
    operations = ended(history())
    assert len(operations) == 40 and operations[0].took == pytest.approx(0.1)
    by_kind = rates(operations, 12.0)
    assert [sum(number for _, number in by_kind[kind]) for kind in ("ok", "fail", "info")] == [38, 1, 1]
    assert by_kind["ok"][2] == (2.5, 4.0)
    for points in quantiles(operations, 12.0).values():
        assert points and all(value == pytest.approx(100.0) for _, value in points)


def test_only_operations_that_a_checker_names_as_proof_are_marked() -> None:
    assert indexes({"a": [{"index": 3}], "proof": [4, 5], "index": 6}) == [4, 5] and indexes({"index": 6}) == []
    shown = excerpts([{"proof": [1, 60, 999]}], history())
    assert [len(stretch) for stretch in shown[0].lines] == [6, 8]
    assert [line.index for stretch in shown[0].lines for line in stretch if line.proves] == [1, 2, 59, 60]


def test_exit_codes_and_board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = str(tmp_path / "runs")
    made: list[RunPlan] = []

    def fake(plan: RunPlan, layout: str, folder: Path) -> Outcome:
        made.append(plan)
        if plan.seed == 4:
            raise RunFailed("the machine is busy")
        found = result(plan, {1: True, 2: False, 3: None}[plan.seed % 10])
        append_line(folder / "results.jsonl", found)
        return found

    for module in ("jepsen_like.chaos", "jepsen_like.chaos.matrix"):
        monkeypatch.setattr(sys.modules[module], "make_run", fake)
    # Results that are kept with the code are extended.
    monkeypatch.setattr(sys.modules["jepsen_like.chaos.board"], "FOLDER", tmp_path / "nothing")

    def call(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(chaos.chaos, [*arguments, "--runs", runs])
        return done.exit_code, done.output

    assert [call("run", "--seed", str(seed))[0] for seed in (1, 2, 3)] == [0, 1, 3]
    assert call("run", "--seed", "4") == (1, "Error: the machine is busy\n"), "it could not be run"
    code, told = call("run", "--cell", "R12", "--seed", "11", "-o", "json")
    assert code == 0 and made[-1].options["nemeses"] == ["bitflip", "kill"] and '"cell": "R12"' in told
    assert call("run", "--seed", "1", "--option", "hold=[1, 2]", "--option", 'shapes=["one"]')[0] == 0
    assert made[-1].options == {"hold": [1, 2], "shapes": ["one"]}
    assert call("run", "--cell", "R99")[0] == 2
    code, told = call("board")
    assert code == 0 and "Never tested: Byzantine nodes" in told
    assert re.search(r"R12 .* 12 +21000 +- +- +1 ", told)
    # The least advanced cell, until one is not valid.
    monkeypatch.setattr(random, "randrange", lambda *span: 2)
    assert call("matrix", "--cells", "R1,R2", "--time", "5")[0] == 1
    assert [plan.cell for plan in made[-1:]] == ["R1"]


def test_the_command_is_found_by_its_entry_point() -> None:
    import tomllib

    with (Path(__file__).parents[4] / "pyproject.toml").open("rb") as file:
        points = tomllib.load(file)["project"]["entry-points"]["raftlog.commands"]
    assert points == {"chaos": "jepsen_like.chaos:chaos"} and isinstance(chaos.chaos, click.Group)
