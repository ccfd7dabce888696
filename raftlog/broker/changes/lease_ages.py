"""How long this node has known of each lease, by its own monotonic clock: whether a lease is over.

A node that has just started begins at zero, so it redelivers later, never earlier. In any case the quorum decides which
worker gets a range (`metadata/image/leases.py`): a clock that runs too fast brings records twice, and loses none.

Pure, but for the clock.
"""

from __future__ import annotations

from collections.abc import Iterable

from metadata.view import LeasedPartition, LeasedRange, LeasesChanged, LeasesRemoved
from raftlog.model import TopicPartition
from raftlog.ports import Clock

_Life = tuple[int, int]
"""The id of a lease, and the entry that last gave it time."""


class LeaseAges:
    """The ages of all leases."""

    def __init__(self, clock: Clock, known: Iterable[LeasedPartition] = ()) -> None:
        """`known`: the leases that the view shows already; their time begins now."""
        self._clock = clock
        self._since: dict[tuple[str, TopicPartition], dict[_Life, float]] = {}
        for record in known:
            self._note(record)

    def on_events(self, index: int, events: Iterable[object]) -> None:
        """Note the leases that the view shows from now on: a listener of the view."""
        for event in events:
            match event:
                case LeasesChanged(record):
                    self._note(record)
                case LeasesRemoved(group_id, partition):
                    self._since.pop((group_id, partition), None)

    def left_s(self, record: LeasedPartition, held: LeasedRange) -> float:
        """Return the seconds until a lease of the view is over; 0: it is."""
        lives = self._since.get((record.group_id, record.partition), {})
        since = lives.get((held.lease_id, held.renewed), self._clock.monotonic())
        return max(0.0, since + held.lease_ms / 1000 - self._clock.monotonic())

    def _note(self, record: LeasedPartition) -> None:
        key, now = (record.group_id, record.partition), self._clock.monotonic()
        known = self._since.get(key, {})
        lives = [(one.lease_id, one.renewed) for one in record.ranges]
        self._since[key] = {life: known.get(life, now) for life in lives}
