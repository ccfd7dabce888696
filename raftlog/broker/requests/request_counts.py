"""Counts of the requests on data connections: by kind and outcome, durations, and bytes.

One object counts for a node. A request costs two readings of a clock and a few additions; nothing is counted for single
records. The kinds are those of the wire protocol, so their number is fixed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import get_args

import msgspec

from raftlog.metrics.histogram import Histogram
from raftlog.wire import (
    DeleteRecordsResponse,
    ErrorResponse,
    FetchResponse,
    OffsetsResponse,
    ProduceResponse,
    Request,
    Response,
    SessionFetchResponse,
)


class KindCounts:
    """The counts of one kind of request."""

    __slots__ = ("errors", "received_bytes", "seconds", "sent_bytes", "successes")

    def __init__(self) -> None:
        self.successes = 0
        self.errors = 0
        """Requests whose answer, or any partition of it, had an error."""
        self.received_bytes = 0
        self.sent_bytes = 0
        self.seconds = Histogram()


class Timed(msgspec.Struct, gc=False):
    """One request in progress."""

    counts: KindCounts
    began: float
    size: int = 0
    """Its bytes in flight."""


class RequestCounts:
    """The counts of one node's data listener."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        """`now` returns monotonic seconds."""
        self._now = now
        self.by_kind: dict[str, KindCounts] = {name_of(kind): KindCounts() for kind in get_args(Request)}
        """Kind → its counts, for all kinds."""
        self._by_type = {kind: self.by_kind[name_of(kind)] for kind in get_args(Request)}

    def begin(self, request: Request, nbytes: int) -> Timed:
        """Count a request of `nbytes` bytes that has arrived."""
        counts = self._by_type[type(request)]
        counts.received_bytes += nbytes
        return Timed(counts, self._now())

    def end(self, timed: Timed, response: Response | None, sent_bytes: int) -> None:
        """Count an answer; None: the request, with `acks` 0, gets none."""
        counts = timed.counts
        counts.seconds.observe(self._now() - timed.began)
        counts.sent_bytes += sent_bytes
        if response is not None and _has_error(response):
            counts.errors += 1
        else:
            counts.successes += 1


def name_of(kind: type[Request]) -> str:
    """Return a kind's name on the wire, without its version, such as `session_fetch`."""
    return str(kind.__struct_config__.tag).partition(".")[0]


def _has_error(response: Response) -> bool:
    if isinstance(response, ErrorResponse):
        return True
    if isinstance(response, SessionFetchResponse):
        return any(slot.error for slot in response.slots)
    if isinstance(response, ProduceResponse | FetchResponse | OffsetsResponse | DeleteRecordsResponse):
        return any(one.error for one in response.partitions)
    return False
