"""Plots of the results of `benchmarks/scale.py`: `docs/scale/*.svg`.

    python benchmarks/scale_plots.py                     # from build/scale.jsonl, of full runs
    python benchmarks/scale_plots.py --smoke --folder build/plots

The latest run of each part counts. The same figures give the same files.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

Row = dict[str, Any]

matplotlib.rcParams.update(
    {
        "svg.hashsalt": "raftlog", "svg.fonttype": "none", "figure.figsize": (7.2, 3.6), "axes.grid": True,
        "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False, "font.size": 10,
    }
)  # fmt: skip


def read(path: str, smoke: bool) -> list[Row]:
    with open(path, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return [row for row in rows if row["smoke"] is smoke]


def latest(rows: Iterable[Row], what: str, *names: str) -> list[Row]:
    """Return the last row of each kind, in the order of these columns."""
    found = {tuple(row[name] for name in names): row for row in rows if row["what"] == what}
    return [found[key] for key in sorted(found)]


def save(figure: Any, folder: str, name: str) -> None:
    figure.tight_layout()
    path = os.path.join(folder, f"{name}.svg")
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    print(path)


def image(rows: list[Row], folder: str) -> None:
    found = latest(rows, "image", "partitions")
    if not found:
        return
    sizes = [row["partitions"] / 1000 for row in found]
    figure, (left, right) = plt.subplots(1, 2)
    memory = [row["image_and_view_bytes_a_partition"] * row["partitions"] / 1e6 for row in found]
    left.plot(sizes, memory, "o-", label="image and view")
    left.plot(sizes, [row["bytes_an_offset"] * row["offsets"] / 1e6 for row in found], "o-", label="committed offsets")
    left.plot(sizes, [row["snapshot_mb"] for row in found], "o-", label="a snapshot")
    left.set(xlabel="thousand partitions", ylabel="MB", ylim=(0, None), xlim=(0, None))
    for name, key in (("create", "create_s"), ("snapshot", "snapshot_s"), ("read it", "read_s"), ("view", "view_s")):
        right.plot(sizes, [row[key] for row in found], "o-", label=name)
    right.set(xlabel="thousand partitions", ylabel="seconds of one core", ylim=(0, None), xlim=(0, None))
    for axes in (left, right):
        axes.legend(frameon=False)
    save(figure, folder, "image")
    figure, axes = plt.subplots()
    for key in ("create", "fence", "elect", "snapshot", "read", "tell", "view"):
        axes.plot(sizes, [row[f"{key}_step_ms"] for row in found], "o-", label=key)
    axes.axhline(20, color="grey", linestyle="--", linewidth=1)
    axes.set(xlabel="thousand partitions", ylabel="longest step, ms", ylim=(0, None), xlim=(0, None))
    axes.legend(frameon=False, ncols=2)
    save(figure, folder, "steps")


def idle(rows: list[Row], folder: str) -> None:
    found = latest(rows, "idle", "brokers")
    if not found:
        return
    brokers = [row["brokers"] for row in found]
    figure, (left, right) = plt.subplots(1, 2)
    left.plot(brokers, [100 * row["share"] for row in found], "o-", label="leader")
    left.plot(brokers, [100 * row["follower_share"] for row in found], "o-", label="other voter")
    left.set(xlabel="idle brokers", ylabel="% of a core", ylim=(0, None), xlim=(0, None))
    left.legend(frameon=False)
    right.plot(brokers, [row["out_messages_s"] for row in found], "o-")
    right.set(xlabel="idle brokers", ylabel="messages per second from the leader", ylim=(0, None), xlim=(0, None))
    save(figure, folder, "idle")


def load(rows: list[Row], folder: str) -> None:
    found = latest(rows, "load", "commits_a_command", "commands_s")
    if not found:
        return
    figure, (left, right) = plt.subplots(1, 2)
    for size in sorted({row["commits_a_command"] for row in found}):
        some = [row for row in found if row["commits_a_command"] == size]
        commits, name = [row["commits_s"] for row in some], f"{size} a command"
        left.plot(commits, [100 * row["share"] for row in some], "o-", label=name)
        right.plot(commits, [row["p99_ms"] for row in some], "o-", label=name)
    left.set(xlabel="group commits per second", ylabel="leader, % of a core", ylim=(0, 105), xscale="log")
    right.set(xlabel="group commits per second", ylabel="p99, ms", xscale="log", yscale="log")
    for axes in (left, right):
        axes.legend(frameon=False)
    save(figure, folder, "load")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", default="build/scale.jsonl")
    parser.add_argument("--folder", default="docs/scale")
    parser.add_argument("--smoke", action="store_true", help="plot the results of smoke runs")
    options = parser.parse_args()
    rows = read(options.results, options.smoke)
    os.makedirs(options.folder, exist_ok=True)
    for draw in (image, idle, load):
        draw(rows, options.folder)


if __name__ == "__main__":
    main()
