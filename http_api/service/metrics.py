"""The broker's port for metrics. `raftlog/broker/metrics/node_metrics.py` implements it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec

from raftlog.metrics.measure import Family


class NodeSample(msgspec.Struct, frozen=True, kw_only=True):
    """The main numbers of a node at one moment. Counts begin with the node's start; plots show their differences."""

    at_ms: int
    """Milliseconds since 1970, by the node's wall clock."""
    appended_records: int
    appended_bytes: int
    replicated_bytes: int
    fetched_bytes: int
    requests: int
    request_errors: int
    fsyncs: int
    fsync_seconds: float
    loop_stalls: int
    leaders: int
    offline_partitions: int
    under_min_isr_partitions: int
    under_replicated_partitions: int
    replication_lag_records: int
    group_lag_records: int
    disk_free_bytes: int


class MetricsService(Protocol):
    """The numbers of one node."""

    def collect(self) -> Iterator[Family | None]:
        """Yield every family of `raftlog/metrics/catalogue.py` that the broker counts, and None wherever the caller may
        let the event loop go on. One collection at a time."""
        ...

    def sample(self) -> NodeSample:
        """Return the main numbers now, in a time that does not grow with the number of partitions."""
        ...
