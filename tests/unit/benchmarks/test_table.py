"""The throughput table: its rows, results that survive an interruption, and its output."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from raftlog.cli.bench.histogram import Summary

ROOT = Path(__file__).parents[3]
MODULES = ("table", "table_run", "table_rows", "bare_loop", "bare_sendfile", "measuring")


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The script, imported as it imports its neighbours: from its own folder."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module("table")
    for name in MODULES:
        sys.modules.pop(name, None)


def result(table: Any, row: str, **changes: Any) -> Any:
    measured = table.Measured(
        row=row, smoke=False, commit="abc", when="2026-01-31T12:00:00Z", records=60_000_000, seconds=60.0, passes=6,
        records_per_second=1_000_000.0, megabytes_per_second=100.0, limit_megabytes_per_second=400.0, of_limit=0.25,
        of_published=2.37, cpu_seconds_per_gigabyte=10.0, cpu_seconds={"node 0": 20.0}, peak_rss_mb=[100.0, 90.0, 80.0],
        checksum="ff", cores="cores 99 % busy", calibration_seconds=0.05,
    )  # fmt: skip
    return msgspec.structs.replace(measured, **changes)


def test_the_rows_are_those_of_the_published_table(table: Any) -> None:
    published = {row.published for row in table.ROWS}
    assert published == {821_557, 786_980, 421_823, 2_024_032, 940_521, 2_615_968, 795_064, None}
    assert len({row.name for row in table.ROWS}) == len(table.ROWS) == 16
    for row in table.ROWS:
        if row.published is not None and row.producers:
            # `send` and `send_many` are distinct.
            assert {row.name.partition("/")[2]} <= {"send", "send_many"}
        assert row.replication_factor == 3 or row.name.startswith("unreplicated/")
        assert row.acks == "all" or row.name.startswith(("unreplicated/", "leader/"))


def test_a_row_with_a_result_is_not_measured_again(table: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "deep" / "results.jsonl")
    table.append_result(path, result(table, "latency", records=1))
    table.append_result(path, result(table, "latency", records=2))
    table.append_result(path, result(table, "all/send", smoke=True))
    table.append_result(path, result(table, "all/send_many", commit="older"))
    found = table.latest(table.read_results(path), smoke=False, sources={"abc"})
    assert {row: measured.records for row, measured in found.items()} == {"latency": 2}
    assert set(table.latest(table.read_results(path), smoke=False, sources={"abc", "older"})) == {
        "latency",
        "all/send_many",
    }


def test_an_incomplete_line_costs_one_row(table: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "results.jsonl"
    table.append_result(str(path), result(table, "all/send"))
    path.write_bytes(path.read_bytes() + b'{"row": "lat\n')
    table.append_result(str(path), result(table, "latency"))
    assert [measured.row for measured in table.read_results(str(path))] == ["all/send", "latency"]
    assert table.read_results(str(tmp_path / "none")) == []


def test_the_table_is_markdown_with_equally_many_columns_in_each_row(table: Any) -> None:
    summary = Summary(3, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0)
    latency = result(
        table, "latency", latency=summary, acknowledged=summary, bare_p50_ms=0.5, of_limit=None,
        limit_megabytes_per_second=None, cpu_seconds_per_gigabyte=None,
    )  # fmt: skip
    lines = table.markdown({"latency": latency, "all/send": result(table, "all/send")}, table.ROWS).splitlines()
    assert len(lines) == 4 and len({line.count("|") for line in lines}) == 1
    assert "1,000,000 | 100 | 0.25 of 400 MB/s | 2.37 of 421,823 | 10.0 | 100, 90, 80 |" in lines[2]
    assert "p50 3.00, p99 3.00, p99.9 3.00, max 3.0 ms" in lines[3]


def test_the_limits_can_be_measured(table: Any, tmp_path: Path) -> None:
    """Small ones: every byte arrives."""
    run = importlib.import_module("table_run")
    scale = run.Scale(1, 1, 1.0, 0.0, 1, 300_000)
    for row in table.ROWS:
        limit = run.bare_limit(row, scale, str(tmp_path))
        assert limit is None if row.rate else limit > 0
    assert list(tmp_path.iterdir()) == []
