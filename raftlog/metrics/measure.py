"""A measure and its samples, as they pass from the rooms that count to the form that a monitoring system reads."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from .histogram import HistogramState

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
Value: TypeAlias = float | HistogramState


class Measure(msgspec.Struct, frozen=True):
    """One metric, by Prometheus's conventions: base units, and counters that end in `_total`."""

    name: str
    kind: Kind
    help: str
    """One sentence of plain English."""
    labels: tuple[str, ...] = ()


class Family(msgspec.Struct):
    """The samples of one measure at one moment."""

    measure: Measure
    samples: list[tuple[tuple[str, ...], Value]] = []
    """The values of the labels, in the measure's order, and the number."""

    @classmethod
    def of(cls, measure: Measure, value: Value) -> Family:
        """Return the family of a measure without labels."""
        return cls(measure, [((), value)])

    def add(self, value: Value, *labels: str) -> None:
        """Add one sample."""
        self.samples.append((labels, value))
