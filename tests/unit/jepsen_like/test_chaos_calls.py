"""Usage errors of `raftlog chaos` are reported before anything is started; a damaged file of a folder is named."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from jepsen_like.chaos import chaos
from jepsen_like.chaos.running import check_plan
from jepsen_like.planted.real import HUNTS
from jepsen_like.run_records import RunPlan
from jepsen_like.runs.options import check_options
from jepsen_like.scoreboard.cells import CELLS
from raftlog.errors import InvalidRequest


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--cell", "NOPE"), "unknown cell 'NOPE'"),
        (("--cell", "R1", "--option", "hold=[0, 1]", "--nodes", "5"), "leave out --nodes, --option"),
        (("--nemesis", "nope"), "there is no nemesis 'nope'"),
        (("--workload", "nope"), "unknown workload 'nope'"),
        (("--planted", "nope"), "unknown planted bug 'nope'"),
        (("--option", "hodl=[1,2]"), "unknown option 'hodl'; options: aims,"),
        (("--option", "aims=5"), "option aims must be a list, not 5"),
        (("--option", "hold=[2,1]"), "hold must be two rising numbers"),
        (("--option", 'retention_past_s="x"'), "option retention_past_s must be a number, not 'x'"),
        (("--option", 'transactions="no"'), "option transactions must be true or false, not 'no'"),
    ],
)
def test_a_usage_error_exits_with_2(tmp_path: Path, arguments: tuple[str, ...], told: str) -> None:
    done = CliRunner().invoke(chaos, ["run", "--runs", str(tmp_path / "runs"), "--time", "1", *arguments])
    shown = " ".join(done.output.replace("│", " ").split())
    assert done.exit_code == 2, done.output
    assert told in shown
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", CELLS)
def test_every_cells_options_exist(name: str) -> None:
    assert name == CELLS[name].name
    check_options(CELLS[name].options)


@pytest.mark.parametrize("bug", HUNTS)
def test_every_hunt_is_a_possible_run(bug: str) -> None:
    plan = HUNTS[bug].plan(bug, 7)
    check_plan(plan)
    assert plan.planted == bug


@pytest.mark.parametrize("damaged", ["plan.json", "history.jsonl", "verdict.json", "faults.jsonl", "outcome.json"])
def test_a_damaged_folder_is_reported_with_the_file(tmp_path: Path, damaged: str) -> None:
    plan = RunPlan(cell="", workload="log", nemesis="none", nodes=3, seconds=1, rate=1, seed=1)
    (tmp_path / "plan.json").write_bytes(msgspec.json.encode(plan))
    (tmp_path / "history.jsonl").write_bytes(b"")
    (tmp_path / damaged).write_bytes(b'{"torn')
    done = CliRunner().invoke(chaos, ["report", str(tmp_path)])
    assert isinstance(done.exception, InvalidRequest)
    assert str(tmp_path / damaged) in done.exception.detail
