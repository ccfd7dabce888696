"""Repeated passes of clients, and their totals.

A producer's pool of values is finite, and no value is sent twice, so a long run is several passes over it, with new
values each time. The clock runs from when the first client begins a pass until the last one ends it, and stands still
between passes. `Between` is the caller's work in that time (`benchmarks/table.py` reads back what was written).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from raftlog.errors import InvalidRequest

from .fleet import Fleet, OnProgress
from .histogram import Histogram
from .messages import Go, Passed

if TYPE_CHECKING:
    from raftlog.client import Admin


class Limits(msgspec.Struct, frozen=True):
    """The end of a run. None: no such limit; there must be at least one."""

    records: int | None = None
    seconds: float | None = None
    both: bool = False
    """Whether to run whole passes until both limits are reached; otherwise the run ends exactly at the first limit."""

    def __post_init__(self) -> None:
        if self.records is None and self.seconds is None:
            raise ValueError("a run without a limit")

    def is_over(self, records: int, seconds: float) -> bool:
        """Return whether the run ends with these totals."""
        enough = [
            done >= wanted for done, wanted in ((records, self.records), (seconds, self.seconds)) if wanted is not None
        ]
        return all(enough) if self.both else any(enough)

    def shares(self, records: int, seconds: float, clients: int, most: int | None) -> list[Go]:
        """Return the next pass after these totals, divided between clients, with at most `most` records for each."""
        left = None if self.records is None or self.both else max(self.records - records, 0)
        time = None if self.seconds is None or self.both else max(self.seconds - seconds, 0.0)
        shares: list[int | None] = [most] * clients
        if left is not None:
            fair = [left // clients + (number < left % clients) for number in range(clients)]
            shares = [share if most is None else min(share, most) for share in fair]
        return [Go(share, time) for share in shares]


class Between:
    """The work around each pass, while the clock stands still. The default is none."""

    async def before(self) -> None:
        """Prepare the next pass."""

    async def after(self, passed: Sequence[Passed]) -> float:
        """Check a pass that has ended.

        Returns its end in monotonic seconds, if that was later than its clients report.
        """
        return 0.0


class Totals(msgspec.Struct):
    """The totals of all passes of all clients."""

    records: int = 0
    bytes: int = 0
    seconds: float = 0.0
    passes: int = 0
    joining: float = 0.0
    """Time of connecting of the slowest client, in seconds."""
    latency: Histogram = msgspec.field(default_factory=Histogram)
    acknowledged: Histogram = msgspec.field(default_factory=Histogram)

    def add(self, passed: Sequence[Passed], ended: float = 0.0) -> None:
        """Add one pass of all clients, which ended at `ended` or with its last client."""
        self.passes += 1
        self.records += sum(one.records for one in passed)
        self.bytes += sum(one.bytes for one in passed)
        took = max(ended, *(one.ended for one in passed)) - min(one.began for one in passed)
        self.seconds += max(took, 1e-9)
        self.joining = max(self.joining, *(one.joining for one in passed))
        for one in passed:
            self.latency.merge(one.latency)
            self.acknowledged.merge(one.acknowledged)


async def produce(
    fleet: Fleet, clients: int, limits: Limits, pool_records: int, on_progress: OnProgress, between: Between
) -> Totals:
    """Run passes over the children's pools. Raises `RaftlogError`."""
    totals = Totals()
    while True:
        await between.before()
        passed = await fleet.go(limits.shares(totals.records, totals.seconds, clients, pool_records), on_progress)
        totals.add(passed, await between.after(passed))
        if limits.is_over(totals.records, totals.seconds):
            return totals
        await fleet.salt()


async def consume(
    fleet: Fleet,
    clients: int,
    limits: Limits | None,
    span: tuple[Mapping[int, int], Mapping[int, int]],
    on_progress: OnProgress,
    between: Between,
) -> Totals:
    """Run passes over the given offsets of each partition, all of them by every client.

    `limits` None: one pass; otherwise repeated passes. Raises `RaftlogError`.
    """
    totals = Totals()
    start, end = (dict(offsets) for offsets in span)
    while True:
        shares = [Go()] * clients
        if limits is not None:
            shares = limits.shares(totals.records, totals.seconds, clients, None)
        await between.before()
        orders = [Go(share.records, share.seconds, start, end) for share in shares]
        passed = await fleet.go(orders, on_progress)
        totals.add(passed, await between.after(passed))
        if not totals.records:
            # Otherwise the passes would never end.
            raise nothing_to_read("the topic")
        if limits is None or limits.is_over(totals.records, totals.seconds):
            return totals


async def spans(admin: Admin, topic: str) -> tuple[dict[int, int], dict[int, int]]:
    """Return the current first and end offset of every partition of a topic. Raises `RaftlogError`."""
    starts, ends = {}, {}
    for partition in range((await admin.describe_topic(topic)).partition_count):
        offsets = await admin.offsets(topic, partition)
        starts[partition], ends[partition] = offsets.earliest, offsets.latest
    return starts, ends


def nothing_to_read(topic: str) -> InvalidRequest:
    """Return the error for an empty topic."""
    return InvalidRequest("invalid_request", f"there is nothing to read: {topic} has no records")
