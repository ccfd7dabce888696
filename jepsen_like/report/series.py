"""Time series of a history: operations per second by outcome, and their latencies. Pure."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from jepsen_like.histories.history import Call, Operation, calls

KINDS = ("ok", "fail", "info")
QUANTILES = (0.5, 0.95, 0.99, 1.0)
WINDOWS = 60
"""Number of windows of a run for which quantiles are computed."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A completed operation; times in seconds since the run began."""

    at: float
    took: float
    f: str
    kind: str


def ended(history: Sequence[Operation]) -> list[Ended]:
    """Return the clients' completed operations, in the order of their completions."""
    found = [_ended(call) for call in calls(history)]
    return sorted((one for one in found if one is not None), key=lambda one: one.at)


def _ended(call: Call) -> Ended | None:
    if call.completion is None:
        return None
    began, at = call.invocation.time / 1e9, call.completion.time / 1e9
    return Ended(at, at - began, call.invocation.f, call.completion.kind)


def length(history: Sequence[Operation]) -> float:
    """Return the seconds from the beginning of the history to its last line."""
    return max((one.time for one in history), default=0) / 1e9


def rates(operations: Sequence[Ended], seconds: float) -> dict[str, list[tuple[float, float]]]:
    """Return kind → (middle of a second, operations completed in it)."""
    counted = {kind: [0] * (int(seconds) + 1) for kind in KINDS}
    for one in operations:
        counted[one.kind][min(int(one.at), int(seconds))] += 1
    return {kind: [(second + 0.5, float(number)) for second, number in enumerate(of)] for kind, of in counted.items()}


def quantiles(operations: Sequence[Ended], seconds: float) -> dict[float, list[tuple[float, float]]]:
    """Return quantile → (middle of a window, milliseconds) for successful operations, leaving out empty windows."""
    good = [one for one in operations if one.kind == "ok"]
    times = [one.at for one in good]
    width = max(seconds / WINDOWS, 1.0)
    found: dict[float, list[tuple[float, float]]] = {quantile: [] for quantile in QUANTILES}
    for window in range(int(seconds / width) + 1):
        first = bisect.bisect_left(times, window * width)
        behind = bisect.bisect_left(times, (window + 1) * width)
        took = sorted(one.took for one in good[first:behind])
        for quantile in QUANTILES if took else ():
            value = took[min(int(quantile * len(took)), len(took) - 1)]
            found[quantile].append(((window + 0.5) * width, 1000 * value))
    return found
