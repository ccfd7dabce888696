"""Plots of a run as SVG, in colours that are readable on white and on black.

Faults are shaded for their duration, in one colour per kind; void faults are drawn as outlines.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from raftlog.errors import InvalidRequest

from ..run_records import Fault
from . import series
from . import unseen as unseen_records

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK = "#7d8590"
KIND_COLOURS = {"ok": "#2da44e", "fail": "#d4a72c", "info": "#cf222e"}
QUANTILE_COLOURS = {0.5: "#0969da", 0.95: "#8250df", 0.99: "#bf3989", 1.0: "#cf222e"}
FAULT_COLOURS = (
    "#0969da", "#bf8700", "#8250df", "#1a7f37", "#cf222e", "#bf3989", "#0e7c86", "#9a6700", "#57606a", "#6639ba",
)  # fmt: skip
LINE_STYLES = ("-", "--", ":", "-.")
POINTS_MAX = 4_000
"""Number of points that are drawn; of more, an even sample is."""
INSTANT_S = 0.3
"""Width of an instantaneous fault."""

_SETTINGS: Any = {
    "svg.hashsalt": "raftlog", "svg.fonttype": "none", "font.size": 9, "axes.edgecolor": INK, "axes.labelcolor": INK,
    "xtick.color": INK, "ytick.color": INK, "text.color": INK, "axes.grid": True, "grid.alpha": 0.25, "grid.color": INK,
    "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
}  # fmt: skip


def colours(faults: Sequence[Fault]) -> dict[str, str]:
    """Return kind of fault → its colour."""
    kinds = sorted({fault.kind for fault in faults})
    return {kind: FAULT_COLOURS[number % len(FAULT_COLOURS)] for number, kind in enumerate(kinds)}


def throughput(operations: Sequence[series.Ended], faults: Sequence[Fault], seconds: float) -> str:
    """Return the plot of completed operations per second."""

    def draw(axes: Axes) -> None:
        for kind, points in series.rates(operations, seconds).items():
            axes.plot(*_apart(points), color=KIND_COLOURS[kind], linewidth=1.2, label=kind)
        axes.set_ylabel("operations per second")
        axes.set_ylim(bottom=0)

    return _drawn(draw, operations, faults, seconds)


def latency(operations: Sequence[series.Ended], faults: Sequence[Fault], seconds: float) -> str:
    """Return the plot of each operation's latency at its end."""
    step = -(-len(operations) // POINTS_MAX) or 1

    def draw(axes: Axes) -> None:
        for kind in series.KINDS:
            points = [(one.at, max(1000 * one.took, 0.1)) for one in operations[::step] if one.kind == kind]
            axes.scatter(*_apart(points), s=4, color=KIND_COLOURS[kind], label=kind, linewidths=0)
        _milliseconds(axes)

    return _drawn(draw, operations, faults, seconds)


def quantiles(operations: Sequence[series.Ended], faults: Sequence[Fault], seconds: float) -> str:
    """Return the plot of successful operations' latency by quantile and window."""

    def draw(axes: Axes) -> None:
        for quantile, points in series.quantiles(operations, seconds).items():
            label = "worst" if quantile == 1 else f"p{100 * quantile:g}"
            axes.plot(*_apart(points), color=QUANTILE_COLOURS[quantile], linewidth=1.2, marker=".", markersize=4,
                      label=label)  # fmt: skip
        _milliseconds(axes)

    return _drawn(draw, operations, faults, seconds)


def unseen(
    lines: Mapping[str, unseen_records.Points],
    operations: Sequence[series.Ended],
    faults: Sequence[Fault],
    seconds: float,
) -> str:
    """Return the plot of unread records; the line of all keys comes first."""

    def draw(axes: Axes) -> None:
        for number, (name, points) in enumerate(lines.items()):
            # Dashes as well as colours: there are more lines than colours that are easy to distinguish.
            style, colour = LINE_STYLES[number % len(LINE_STYLES)], FAULT_COLOURS[number % len(FAULT_COLOURS)]
            whole = name == unseen_records.TOTAL
            axes.plot(*_apart(points), color=INK if whole else colour, linewidth=1.8 if whole else 1.0,
                      linestyle="-" if whole else style, drawstyle="steps-post", label=name)  # fmt: skip
        axes.set_ylabel("records")
        axes.set_ylim(bottom=0)

    return _drawn(draw, operations, faults, seconds)


def _drawn(
    draw: Callable[[Axes], None], operations: Sequence[series.Ended], faults: Sequence[Fault], seconds: float
) -> str:
    """Draw from the first operation on; before it the cluster is created."""
    try:
        import matplotlib
    except ImportError as error:
        raise InvalidRequest(
            "invalid_request", "reports need matplotlib, which is not installed: pip install 'raftlog[chaos]'"
        ) from error
    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    with matplotlib.rc_context(_SETTINGS):
        figure, axes = plt.subplots(figsize=(9.6, 2.9), layout="constrained")
        draw(axes)
        _shade(axes, faults)
        axes.set_xlim(max(0.0, min((one.at - one.took for one in operations), default=0.0) - 1), max(seconds, 1.0))
        axes.set_xlabel("seconds")
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), markerscale=2)
        written = io.StringIO()
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
        plt.close(figure)
    # Within a page, the SVG has no XML head.
    return written.getvalue()[written.getvalue().index("<svg") :]


def _shade(axes: Axes, faults: Sequence[Fault]) -> None:
    of_kind = colours(faults)
    for fault in faults:
        began, ended = fault.began / 1e9, max(fault.ended / 1e9, fault.began / 1e9 + INSTANT_S)
        if fault.evidence:
            axes.axvspan(began, ended, color=of_kind[fault.kind], alpha=0.13, linewidth=0)
        else:
            axes.axvspan(began, ended, facecolor="none", edgecolor=of_kind[fault.kind], linewidth=0.8, linestyle=":")


def _milliseconds(axes: Axes) -> None:
    if not axes.dataLim.y1 > 0:
        # An empty plot has no logarithm: a run in which no operation ended, or none succeeded.
        axes.set_ylim(1, 1000)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
    axes.set_ylabel("milliseconds")


def _apart(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]
