"""Plots: the last day of the main numbers of topics, groups and nodes."""

from __future__ import annotations

import msgspec

MAX_MINUTES = 24 * 60


class PlotSeries(msgspec.Struct, frozen=True):
    """One series; null where no node has a value."""

    name: str
    """With its unit, such as `records_per_second`."""
    values: list[float | None]
    node: int | None = None
    """The node that the series is about; null: the sum over all nodes."""


class Plots(msgspec.Struct, frozen=True):
    """Series with the same points: point `i` is the average from `from_ms + i * step_ms` on, for `step_ms`."""

    from_ms: int
    """Cluster time in milliseconds since 1970."""
    step_ms: int
    points: int
    series: list[PlotSeries]
    unanswered: dict[str, str] = {}
    """Nodes without an answer, with the reason: their part of the sums is missing."""
