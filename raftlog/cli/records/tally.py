"""The outcome of the records of one `raftlog produce`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from raftlog.errors import Applied, RaftlogError, error_from_code

if TYPE_CHECKING:
    from raftlog.client import DeliveryFuture


class Tally:
    """A count of records by the deliveries of their batches. A delivery counts once, even if several calls returned
    it."""

    def __init__(self) -> None:
        self.queued = 0
        self.queued_bytes = 0
        self.acknowledged = 0
        self.first_error: RaftlogError | None = None
        self._unknown = False
        self._open: dict[DeliveryFuture, None] = {}
        self._just_done: dict[DeliveryFuture, None] = {}
        """Deliveries decided since the last `add`. They take no more records, so only the `add` of a call that was
        in progress then can repeat them."""

    def add(self, deliveries: Iterable[DeliveryFuture], records: int, size: int) -> None:
        """Count queued records and bytes; each record is in one of these deliveries."""
        self.queued += records
        self.queued_bytes += size
        known, self._just_done = self._just_done, {}
        for delivery in deliveries:
            if delivery not in known and delivery not in self._open:
                self._open[delivery] = None
                delivery.add_done_callback(self._done)

    @property
    def failed(self) -> int:
        """Number of records that are not acknowledged.

        It is final when the producer is closed. After an interrupted call to send it is a lower bound, since the
        records which that call queued are not counted.
        """
        return max(0, self.queued - self.acknowledged)

    @property
    def acknowledged_bytes(self) -> int:
        """Acknowledged bytes of keys and values; an estimate after failures."""
        return self.queued_bytes * self.acknowledged // max(1, self.queued)

    def error(self, cause: RaftlogError | None) -> RaftlogError:
        """Return an error with the number of failed records and the reason.

        The reason is `cause`, or that of the first failed batch.
        """
        cause = cause or self.first_error
        assert cause is not None, "a delivery failed without error"
        perhaps = ", but may be in the log" if self._unknown else ""
        noun = "record was" if self.failed == 1 else "records were"
        return error_from_code(cause.code, f"{self.failed} {noun} not acknowledged{perhaps}: {cause.detail}")

    def _done(self, delivery: DeliveryFuture) -> None:
        self._open.pop(delivery, None)
        self._just_done[delivery] = None
        error = delivery.exception()
        if error is None:
            self.acknowledged += delivery.result().count
            return
        self.first_error = self.first_error or error
        self._unknown = self._unknown or error.applied is Applied.UNKNOWN
