"""What became of the records of one `raftlog produce`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from raftlog.errors import Applied, RaftlogError, error_from_code

if TYPE_CHECKING:
    from raftlog.client import DeliveryFuture


class Tally:
    """Counts records by the deliveries of their batches. A delivery counts once, in however many calls it was given."""

    def __init__(self) -> None:
        self.queued = 0
        self.queued_bytes = 0
        self.acknowledged = 0
        self.first_error: RaftlogError | None = None
        self._unknown = False
        self._open: dict[DeliveryFuture, None] = {}
        self._just_done: dict[DeliveryFuture, None] = {}
        """Decided since the last `add`: what is decided takes no more records, so that only the `add` of a call that
        was under way then can bring it again."""

    def add(self, deliveries: Iterable[DeliveryFuture], records: int, size: int) -> None:
        """So many records of so many bytes were queued; each is in one of these deliveries."""
        self.queued += records
        self.queued_bytes += size
        known, self._just_done = self._just_done, {}
        for delivery in deliveries:
            if delivery not in known and delivery not in self._open:
                self._open[delivery] = None
                delivery.add_done_callback(self._done)

    @property
    def failed(self) -> int:
        """Records that are not acknowledged. Final once the producer is closed; a lower bound after a call to send that
        was cut short, since what that queued is not counted."""
        return max(0, self.queued - self.acknowledged)

    @property
    def acknowledged_bytes(self) -> int:
        """Of keys and values; after failures an estimate."""
        return self.queued_bytes * self.acknowledged // max(1, self.queued)

    def error(self, cause: RaftlogError | None) -> RaftlogError:
        """Says how many failed, and why: `cause`, or what the first failed batch says."""
        cause = cause or self.first_error
        assert cause is not None, "a delivery failed without error"
        perhaps = ", perhaps in the log all the same" if self._unknown else ""
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
