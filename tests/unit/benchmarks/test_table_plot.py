"""The plot of the throughput table shows the figures of the README, which are those of `docs/performance.md`."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_plot_has_the_recorded_figures(tmp_path: Path) -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "table_plot.py"))
    rows = script["rows_of"]((ROOT / "README.md").read_text())
    assert len(rows) == 6
    recorded = (ROOT / "docs" / "performance.md").read_text()
    script["plot"](rows, tmp_path / "plot.svg")
    for shown in ((tmp_path / "plot.svg").read_text(), (ROOT / "docs" / "throughput.svg").read_text()):
        for _, ours, theirs in rows:
            assert f"{ours:,}" in recorded, "benchmarks never have other figures than those that were recorded"
            assert f">{ours:,}<" in shown and f">{theirs:,}<" in shown, "python benchmarks/table_plot.py"
