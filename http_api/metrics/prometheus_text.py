"""Families in Prometheus's text format or OpenMetrics, by prometheus_client.

The library writes everything but the samples of counters and gauges, whose lines are the same in both formats: with ten
thousand partitions its seven microseconds a line would be most of a scrape's cost.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from raftlog.metrics.measure import Family
from raftlog.prometheus import metric_of

_PROCESS = CollectorRegistry()
ProcessCollector(registry=_PROCESS)
PlatformCollector(registry=_PROCESS)
GCCollector(registry=_PROCESS)

_END = b"# EOF\n"
"""The last line of OpenMetrics."""
_SPECIAL = re.compile(r'[\\"\n]')
_ESCAPED = {"\\": r"\\", '"': r"\"", "\n": r"\n"}


class Families(Collector):
    """The input of the library."""

    def __init__(self, families: Sequence[Family], others: Sequence[Collector] = ()) -> None:
        self._families = families
        self._others = others

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            yield metric_of(family)
        for other in self._others:
            yield from other.collect()


def render(families: Sequence[Family], accept: str) -> tuple[bytes, str]:
    """Return the text and its content type for an `Accept` header. Takes a microsecond or two a sample: call it on a
    thread."""
    encode, content_type = choose_encoder(accept)
    pieces = []
    for family in families:
        if family.measure.kind != "histogram":
            pieces.append(encode(Families([Family(family.measure)])).removesuffix(_END))
            pieces.append(sample_lines(family).encode())
    histograms = [family for family in families if family.measure.kind == "histogram"]
    pieces.append(encode(Families(histograms, [_PROCESS])))
    return b"".join(pieces), content_type


def sample_lines(family: Family) -> str:
    """Return the lines of a counter's or gauge's samples."""
    measure = family.measure
    labels = ",".join(f'{label}="%s"' for label in measure.labels)
    line = f"{measure.name}{{{labels}}} %s\n" if labels else f"{measure.name} %s\n"
    lines = []
    for values, value in family.samples:
        if values and _SPECIAL.search("".join(values)):
            values = tuple(_SPECIAL.sub(lambda found: _ESCAPED[found[0]], text) for text in values)
        number = value if value.__class__ is int else floatToGoString(value)  # type: ignore[no-untyped-call]
        lines.append(line % (*values, number))
    return "".join(lines)
