"""Families in Prometheus's text format or OpenMetrics, by prometheus_client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from raftlog.metrics.measure import Family
from raftlog.prometheus import metric_of

_PROCESS = CollectorRegistry()
ProcessCollector(registry=_PROCESS)
PlatformCollector(registry=_PROCESS)
GCCollector(registry=_PROCESS)


class _Families(Collector):
    """The input of the library: the node's families, and those of any process."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            yield metric_of(family)
        yield from _PROCESS.collect()


def render(families: Sequence[Family], accept: str) -> tuple[bytes, str]:
    """Return the text and its content type for an `Accept` header. Takes a few microseconds a sample: call it on a
    thread."""
    encode, content_type = choose_encoder(accept)
    return encode(_Families(families)), content_type
