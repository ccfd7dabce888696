"""Families of `raftlog/metrics/` as metrics of prometheus_client, for nodes and for clients.

Only what exports metrics imports this module: the library is not loaded otherwise.
"""

from __future__ import annotations

from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from raftlog.metrics.histogram import HistogramState
from raftlog.metrics.measure import Family


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
