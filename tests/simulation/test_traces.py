"""Trace hashes of a range of seeds: stored in a file, run once each, compared with those of other code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jepsen_like.simulator.__main__ import main
from jepsen_like.simulator.shards.traces import compare, read_traces, run_traces

SECONDS = 2.0


def test_a_seed_in_the_file_is_not_run_again(tmp_path: Path) -> None:
    path = str(tmp_path / "traces.jsonl")
    assert [seed for seed, _ in run_traces("quorum", 1, 2, SECONDS, path)] == [1, 2]
    assert [seed for seed, _ in run_traces("quorum", 1, 3, SECONDS, path)] == [3]
    assert set(read_traces(path)) == {("quorum", seed, SECONDS) for seed in (1, 2, 3)}


def test_the_same_code_gives_the_same_hashes_and_changed_code_is_detected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = tmp_path / "before.jsonl", tmp_path / "after.jsonl"
    seeds = ["traces", "--kind", "quorum", "--from", "1", "--to", "2", "--seconds", str(SECONDS)]
    assert main([*seeds, "--out", str(before)]) == 0
    assert main([*seeds, "--out", str(after), "--against", str(before)]) == 0
    assert "equal: 2 of quorum; different: 0; missing: 0" in capsys.readouterr().out
    lines = [json.loads(line) for line in before.read_text().splitlines()]
    lines[1]["trace"] = "0" * 16
    before.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main([*seeds, "--out", str(after), "--against", str(before)]) == 1
    assert "quorum 2: different" in capsys.readouterr().out


def test_missing_seeds_or_none_at_all_do_not_count_as_equal() -> None:
    before = {("quorum", 1, SECONDS): "a", ("quorum", 2, SECONDS): "b"}
    assert not compare(before, {("quorum", 1, SECONDS): "a"}).same
    assert not compare({}, {}).same
    assert compare(before, dict(before)).same


def test_an_unrelated_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    path.write_text('{"kind": "quorum"}\n')
    assert main(["traces", "--kind", "quorum", "--from", "1", "--to", "1", "--out", str(path)]) == 2
    assert path.read_text() == '{"kind": "quorum"}\n'
