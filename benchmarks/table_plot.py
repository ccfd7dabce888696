"""The plot of the throughput table: `docs/throughput.svg`, from the table that the README shows.

    python benchmarks/table_plot.py

The same table gives the same file.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PLOT = ROOT / "docs" / "throughput.svg"
_ROW = re.compile(r"^\| (.+?) \| ([0-9,]+) \| ([0-9,]+) \|$", re.MULTILINE)
_OURS, _THEIRS = "#3b5bdb", "#adb5bd"

matplotlib.rcParams.update(
    {
        "svg.hashsalt": "raftlog", "svg.fonttype": "none", "figure.figsize": (8.4, 4.4), "axes.spines.top": False,
        "axes.spines.right": False, "font.size": 10,
    }
)  # fmt: skip


def rows_of(text: str) -> list[tuple[str, int, int]]:
    """Return the rows with a throughput: label, records per second, and those of Kafka in 2014."""
    return [
        (re.sub(r" \(.*\)|`", "", label), int(ours.replace(",", "")), int(theirs.replace(",", "")))
        for label, ours, theirs in _ROW.findall(text)
    ]


def plot(rows: list[tuple[str, int, int]], path: Path) -> None:
    """Draw two bars for each row, with their numbers: one plot for writing, and one for reading, of another scale."""
    reading = [row for row in rows if "producer" not in row[0]]
    writing = [row for row in rows if row not in reading]
    sizes = [len(writing), len(reading)]
    figure, plots = plt.subplots(2, 1, height_ratios=sizes)
    for axes, some in zip(plots, (writing, reading), strict=True):
        places = range(len(some), 0, -1)
        for shift, column, colour, name in (
            (0.2, 1, _OURS, "raftlog: brokers and clients on one machine with two cores, fsync on"),
            (-0.2, 2, _THEIRS, "Kafka, 2014: three brokers with six cores each, three more machines, no fsync"),
        ):
            rates = [int(row[column]) for row in some]
            axes.barh([place + shift for place in places], rates, 0.38, color=colour, label=name)
            for place, rate in zip(places, rates, strict=True):
                axes.annotate(
                    f"{rate:,}", (rate, place + shift), (4, 0), textcoords="offset points", va="center", fontsize=9
                )
        axes.set_xlim(0, max(max(row[1:]) for row in some) * 1.25)
        axes.set_yticks(list(places), [row[0] for row in some])
        axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1e6:g} M")
    plots[1].set_xlabel("records of 100 bytes per second")
    figure.legend(*plots[0].get_legend_handles_labels(), loc="upper center", frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0, 1, 0.9))
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=PLOT)
    plot(rows_of(README.read_text()), parser.parse_args().output)
