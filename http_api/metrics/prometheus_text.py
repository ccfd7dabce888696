"""Families in Prometheus's text format or OpenMetrics, by prometheus_client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from raftlog.metrics.histogram import HistogramState
from raftlog.metrics.measure import Family

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


def metric_of(family: Family) -> Metric:
    """Return a family in the library's form."""
    measure = family.measure
    if measure.kind == "histogram":
        histogram = HistogramMetricFamily(measure.name, measure.help, labels=measure.labels)
        for labels, value in family.samples:
            assert isinstance(value, HistogramState), measure.name
            histogram.add_metric(labels, _buckets(value), value.total)
        return histogram
    kind = CounterMetricFamily if measure.kind == "counter" else GaugeMetricFamily
    metric = kind(measure.name, measure.help, labels=measure.labels)
    for labels, value in family.samples:
        assert not isinstance(value, HistogramState), measure.name
        metric.add_metric(labels, value)
    return metric


def _buckets(state: HistogramState) -> list[tuple[str, float]]:
    bounds = [*map(floatToGoString, state.bounds), "+Inf"]
    return list(zip(bounds, map(float, accumulate(state.counts)), strict=True))
