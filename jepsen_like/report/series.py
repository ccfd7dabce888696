"""What a history says over time: how many operations ended how, second by second, and how long they took. Pure."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from jepsen_like.histories.history import Call, Operation, calls

KINDS = ("ok", "fail", "info")
QUANTILES = (0.5, 0.95, 0.99, 1.0)
WINDOWS = 60
"""Of a run, in each of which quantiles are taken."""


@dataclass(frozen=True, slots=True)
class Ended:
    """An operation that has ended, in seconds since the run began."""

    at: float
    took: float
    f: str
    kind: str


def ended(history: Sequence[Operation]) -> list[Ended]:
    """Of clients, in the order of their ends."""
    found = [_ended(call) for call in calls(history)]
    return sorted((one for one in found if one is not None), key=lambda one: one.at)


def _ended(call: Call) -> Ended | None:
    if call.completion is None:
        return None
    began, at = call.invocation.time / 1e9, call.completion.time / 1e9
    return Ended(at, at - began, call.invocation.f, call.completion.kind)


def length(history: Sequence[Operation]) -> float:
    """Seconds from its beginning to its last line."""
    return max((one.time for one in history), default=0) / 1e9


def rates(operations: Sequence[Ended], seconds: float) -> dict[str, list[tuple[float, float]]]:
    """Kind → (middle of a second, operations that ended in it)."""
    counted = {kind: [0] * (int(seconds) + 1) for kind in KINDS}
    for one in operations:
        counted[one.kind][min(int(one.at), int(seconds))] += 1
    return {kind: [(second + 0.5, float(number)) for second, number in enumerate(of)] for kind, of in counted.items()}


def quantiles(operations: Sequence[Ended], seconds: float) -> dict[float, list[tuple[float, float]]]:
    """Of those that succeeded: quantile → (middle of a window, milliseconds). Windows without any are left out."""
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
