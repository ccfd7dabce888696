"""Export of the clients' metrics by prometheus_client: `PrometheusCollector().add(producer, "orders")`.

Any other monitoring system reads the same numbers: each client has the property `metrics`, which returns them as
families (`raftlog/metrics/measure.py`).
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from msgspec.structs import replace
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from raftlog.errors import InvalidRequest
from raftlog.metrics.measure import Family
from raftlog.prometheus import metric_of

logger = logging.getLogger("raftlog.client")

CLIENT_LABEL = "client"
LOOP_SECONDS = 1.0
"""Longest wait for the event loop of an asyncio client, in seconds. A loop that is held for longer is shown without its
clients until the next scrape."""


class MeasuredClient(Protocol):
    """A `Producer`, `Consumer` or `GroupConsumer`, asyncio or blocking."""

    @property
    def metrics(self) -> Sequence[Family]:
        """The client's numbers now."""
        ...


class _Exported(NamedTuple):
    """One client, and the event loop on whose thread its numbers are read; None: on any thread."""

    client: weakref.ReferenceType[MeasuredClient]
    loop: asyncio.AbstractEventLoop | None


class PrometheusCollector(Collector):
    """Shows the metrics of clients, each with its name as the label `client`.

    Scrapes may come on any thread. A client is shown until it is removed or nothing else refers to it.
    """

    def __init__(self, registry: CollectorRegistry | None = REGISTRY) -> None:
        """`registry`: where the collector is registered; None: nowhere."""
        self._exported: dict[str, _Exported] = {}
        if registry is not None:
            registry.register(self)

    def add(self, client: MeasuredClient, name: str) -> None:
        """Show a client under this name. Call it on the event loop of an asyncio client.

        Raises `InvalidRequest` (`invalid_config`) if another client has the name.
        """
        known = self._exported.get(name)
        if known is not None and known.client() not in (None, client):
            raise InvalidRequest(
                "invalid_config", f"another client is exported as {name!r}: give each a name of its own"
            )
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        self._exported[name] = _Exported(weakref.ref(client), loop)

    def remove(self, name: str) -> None:
        """Show this client no longer. Without effect if there is none."""
        self._exported.pop(name, None)

    def describe(self) -> list[Metric]:
        """Return nothing: what is shown depends on the clients that will be added."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all clients; each metric once, with the samples of every client."""
        joined: dict[str, Family] = {}
        for name, exported in list(self._exported.items()):
            client = exported.client()
            if client is None:
                self.remove(name)
                continue
            for family in _read(client, exported.loop, name):
                measure = family.measure
                shown = joined.get(measure.name)
                if shown is None:
                    labels = (CLIENT_LABEL, *measure.labels)
                    shown = joined[measure.name] = Family(replace(measure, labels=labels), [])
                shown.samples += [((name, *labels), value) for labels, value in family.samples]
        for family in joined.values():
            yield metric_of(family)


def _read(client: MeasuredClient, loop: asyncio.AbstractEventLoop | None, name: str) -> Sequence[Family]:
    """Return a client's numbers; none if its loop does not answer in time."""
    if loop is None or not loop.is_running() or _runs_here(loop):
        return client.metrics

    async def read() -> Sequence[Family]:
        return client.metrics

    reading = asyncio.run_coroutine_threadsafe(read(), loop)
    try:
        return reading.result(LOOP_SECONDS)
    except TimeoutError:
        reading.cancel()
        logger.warning("the metrics of client %s are missing: its event loop is held up", name)
        return ()


def _runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
