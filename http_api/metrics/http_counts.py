"""Counts of the requests to the HTTP API, by method, route and status. The routes bound the number of series."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from raftlog.metrics import catalogue as names
from raftlog.metrics.histogram import Histogram
from raftlog.metrics.measure import Family

UNMATCHED = ("other", "unmatched")
"""Method and route of requests that no route takes."""


class HttpCounts:
    """The counts of one API. A request costs a few additions."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._seconds: dict[tuple[str, str], Histogram] = {}
        self._received = 0
        self._sent = 0

    def answered(self, method: str, route: str | None, status: int, seconds: float, received: int, sent: int) -> None:
        """Count an answer. `route`: the pattern of the path, None if no route takes it; sizes of bodies in bytes."""
        key = UNMATCHED if route is None else (method, route)
        self._requests[(*key, status)] += 1
        histogram = self._seconds.get(key)
        if histogram is None:
            histogram = self._seconds[key] = Histogram()
        histogram.observe(seconds)
        self._received += received
        self._sent += sent

    def collect(self, connections: int, in_progress: int, streams: int) -> Iterator[Family]:
        """Yield the families; the arguments are the numbers now."""
        requests = Family(names.HTTP_REQUESTS, [])
        for (method, route, status), count in self._requests.items():
            requests.add(count, method, route, str(status))
        yield requests
        yield Family(names.HTTP_SECONDS, [(key, one.state()) for key, one in self._seconds.items()])
        yield Family.of(names.HTTP_RECEIVED, self._received)
        yield Family.of(names.HTTP_SENT, self._sent)
        yield Family.of(names.HTTP_CONNECTIONS, connections)
        yield Family.of(names.HTTP_IN_PROGRESS, in_progress)
        yield Family.of(names.HTTP_STREAMS, streams)
