"""Results that are kept with the code: each line once, unchanged; and the scoreboard's rows that are no cells."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from jepsen_like.chaos import chaos
from jepsen_like.scoreboard import kept_results
from jepsen_like.scoreboard.kept_results import FIELDS, FOLDER, file_of, keep, lines_of
from jepsen_like.scoreboard.other_rows import corpora, hunted, power_failures, spark_kills
from jepsen_like.scoreboard.scoreboard import COLUMNS, figures, read_results
from raftlog.errors import InvalidRequest

POWER = b'{"round":1,"survivors":["parts"],"acknowledged_lost":[],"commit":"abc"}'
SEEDS = b'{"kind": "quorum", "from": 1, "to": 5, "violations": []}'


def test_lines_are_copied_unchanged_and_once(tmp_path: Path) -> None:
    one, other, folder = tmp_path / "one.jsonl", tmp_path / "other.jsonl", tmp_path / "kept"
    one.write_bytes(POWER + b"\n" + SEEDS + b"\n" + POWER[:20])
    other.write_bytes(SEEDS + b"\n")
    assert keep([one, other], folder) == {"power-failures.jsonl": 1, "seeds.jsonl": 1}
    assert keep([other, one], folder) == {"power-failures.jsonl": 0, "seeds.jsonl": 0}
    assert (folder / "seeds.jsonl").read_bytes() == SEEDS + b"\n"
    assert lines_of("power-failures.jsonl", folder)[0]["survivors"] == ["parts"]
    assert lines_of("corpora.jsonl", folder) == []


@pytest.mark.parametrize("line", [b'{"my": "notes"}', b"[1, 2}", b"{}"])
def test_nothing_is_copied_from_a_file_with_other_content(tmp_path: Path, line: bytes) -> None:
    file, folder = tmp_path / "one.jsonl", tmp_path / "kept"
    file.write_bytes(POWER + b"\n" + line + b"\n")
    with pytest.raises(InvalidRequest, match="line 2: not a result of the fault suite"):
        keep([file], folder)
    assert not folder.exists()


def test_the_kept_results_are_valid() -> None:
    """This also checks lines that were added by hand."""
    assert {file.name for file in FOLDER.iterdir()} <= {*FIELDS, "README.md"}
    for name in FIELDS:
        lines = lines_of(name)
        assert all(file_of(line) == name for line in lines)
        raw = (FOLDER / name).read_bytes().splitlines() if lines else []
        assert len(raw) == len(set(raw)), f"{name} has a line twice"
    list(read_results([FOLDER / kept_results.RUNS] if (FOLDER / kept_results.RUNS).exists() else []))
    readme = (FOLDER / "README.md").read_text()
    assert all(f"`{name}`" in readme for name in FIELDS)


def test_keep_and_board_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "power-loss.jsonl"
    file.write_bytes(POWER + b"\n")
    folder, board = tmp_path / "kept", tmp_path / "scoreboard.csv"
    module = sys.modules["jepsen_like.chaos.board"]
    monkeypatch.setattr(module, "FOLDER", folder)
    monkeypatch.setattr(module, "SCOREBOARD", board)
    monkeypatch.setattr(module, "keep_lines", lambda files: keep(files, folder))
    monkeypatch.setattr(module, "lines_of", lambda name: lines_of(name, folder))
    assert "power-failures.jsonl  1" in CliRunner().invoke(chaos, ["keep", str(file)], catch_exceptions=False).output
    done = CliRunner().invoke(chaos, ["board", "--write", "--runs", str(tmp_path)], catch_exceptions=False)
    assert done.exit_code == 0 and "Never tested" in done.output
    written = board.read_text().splitlines()
    assert [line.partition(",")[0] for line in written[-7:]] == ["L", "S", "Sim2", "Sim3", "K", "P", "Pr"]
    (row,) = (dict(zip(COLUMNS, line, strict=True)) for line in csv.reader(written) if line[0] == "L")
    assert (row["target_rounds"], row["rounds"], row["rounds_now"], row["passed"]) == ("20", "1", "0", "1")


def test_power_failures_with_losses_are_no_successful_rounds() -> None:
    lines = [
        {"commit": "here", "acknowledged_lost": []},
        {"commit": "before", "acknowledged_lost": []},
        {"commit": "here", "acknowledged_lost": ["a topic was made", "a register"]},
    ]
    row = power_failures(lines, lambda commit, clean: commit == "here")
    assert (row["rounds"], row["rounds_now"], row["runs"], row["anomalies_now"]) == (2, 1, 3, "acknowledged-lost=2")


def test_failed_kills_of_spark_are_reported() -> None:
    lines = [{"verdict": "right", "commit": "a"}, {"verdict": "a record is there twice", "commit": "b"}]
    row = spark_kills(lines)
    assert (row["rounds"], row["runs"], row["anomalies"], row["last_commit"]) == (1, 2, "wrong=1", "b")
    assert spark_kills([])["rounds"] == 0
    assert spark_kills([*lines, {"verdict": "right", "commit": "c", "target": "parquet"}]) == row
    assert spark_kills([{"verdict": "right", "commit": "c", "target": "topic"}])["rounds"] == 1


def test_of_each_corpus_the_last_line_counts() -> None:
    lines = [
        {"corpus": "porcupine", "cases": 108, "agreed": 100, "commit": "a"},
        {"corpus": "porcupine", "cases": 108, "agreed": 108, "commit": "b"},
        {"corpus": "knossos", "cases": 122, "agreed": 121, "commit": "b"},
    ]
    row = corpora(lines)
    assert (row["runs"], row["passed"], row["anomalies_now"], row["last_commit"]) == (230, 229, "knossos", "b")
    assert row["workload"] == "knossos=121/122 porcupine=108/108"


def test_a_bug_that_is_found_too_late_does_not_count() -> None:
    row = hunted(["a", "b", "c", "d"], {"a": 30.0, "b": 50.0, "c": 700.0}, 600.0)
    assert (row["runs"], row["passed"], row["unknown"], row["workload"]) == (4, 2, 2, "median 50 s")
    assert hunted(["a"], {}, 600.0)["passed"] == 0


def test_jepsens_own_figures_are_shown_for_comparison() -> None:
    assert figures("") == ""
    assert figures("J1-J3").count("J") == 3 and figures("J1-J3").startswith("J1: Redpanda")
    assert "J4: etcd" in figures("J1, J4, J5") and "J2" not in figures("J1, J4, J5")


def test_available_corpora_are_checked(tmp_path: Path) -> None:
    folder = tmp_path / "corpora"
    (folder / "porcupine").mkdir(parents=True)
    for name, value in (("good.log", "3"), ("bad.log", "4")):
        read = f"INFO  jepsen.util - 1\t:invoke\t:read\tnil\nINFO  jepsen.util - 1\t:ok\t:read\t{value}\n"
        write = "INFO  jepsen.util - 0\t:invoke\t:write\t3\nINFO  jepsen.util - 0\t:ok\t:write\t3\n"
        (folder / "porcupine" / name).write_text(write + read)
    told = {name: {"model": "", "linearizable": True} for name in ("good.log", "bad.log")}
    (folder / "porcupine" / "expected.json").write_text(json.dumps({"cases": told}))
    done = CliRunner().invoke(chaos, ["corpora", str(folder), "--runs", str(tmp_path)], catch_exceptions=False)
    assert done.exit_code == 1 and "bad.log" in done.output and "good.log" not in done.output
    (line,) = (json.loads(line) for line in (tmp_path / "corpora.jsonl").read_bytes().splitlines())
    assert (line["cases"], line["agreed"], line["wrong"]) == (2, 1, ["bad.log"])
    assert file_of(line) == "corpora.jsonl"
