"""How far one follower is, as its leader knows it.

Progress belongs to one (leader epoch, follower incarnation): a new leader knows nothing, and a follower that registered
again is another follower. Two numbers of the follower matter. `fetch_offset` says where it reads on and decides
nothing. `stable_end_offset` says what it has fsynced; it counts for the high watermark, for lag and for joining the
ISR, and only once `matched`: once the follower compared its log with this leader's in this epoch and incarnation.

What is *not* here: whom the quorum put into the ISR (`isr.py`), what is sent to the follower (`replication_server.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.errors import RemoteProtocolError
from raftlog.model import BrokerId, Incarnation, Offset

NOTHING = Offset(-1)
FIRST = Offset(0)


@dataclass(slots=True)
class FollowerProgress:
    """One follower of one leader.

    Invariant: where `matched`, `0 <= stable_end_offset <= fetch_offset`; the stable end never falls.
    """

    broker_id: BrokerId
    incarnation: Incarnation
    caught_up_at: float
    """The last time (monotonic seconds) at which it is known to have had everything stable; at first, when this
    progress began."""
    matched: bool = False
    fetch_offset: Offset = NOTHING
    stable_end_offset: Offset = NOTHING
    stable_start_offset: Offset = FIRST
    """Where its log begins, as far as its disk knows."""
    _mark: Offset = NOTHING
    """The leader's log end at some earlier report, not stable here by then; `NOTHING` where there is no such mark."""
    _marked_at: float = 0.0

    @property
    def counted_end_offset(self) -> Offset | None:
        """Up to where this follower certainly has the leader's log on disk; None while nothing is known."""
        return self.stable_end_offset if self.matched else None

    def on_report(self, fetch_offset: Offset, stable_end_offset: Offset, log_end_offset: Offset, now: float) -> None:
        """The follower, matched, says how far it is. Raises `RemoteProtocolError` for what cannot be."""
        if not 0 <= stable_end_offset <= fetch_offset <= log_end_offset:
            raise RemoteProtocolError(
                f"follower {self.broker_id} reports stable end {stable_end_offset} and fetch offset {fetch_offset} "
                f"of a log that ends at {log_end_offset}"
            )
        if self.matched and stable_end_offset < self.stable_end_offset:
            raise RemoteProtocolError(
                f"follower {self.broker_id} had {self.stable_end_offset} stable and now has {stable_end_offset}"
            )
        self.matched = True
        self.fetch_offset = fetch_offset
        self.stable_end_offset = stable_end_offset
        # Under steady load a follower is never at the very end. Having now what was all there was at the mark means
        # that it was caught up then. The mark stays until it is reached: reports overtake what they report on.
        if stable_end_offset >= log_end_offset:
            self.caught_up_at, self._mark = now, NOTHING
        elif stable_end_offset >= self._mark:
            if self._mark != NOTHING:
                self.caught_up_at = max(self.caught_up_at, self._marked_at)
            self._mark, self._marked_at = log_end_offset, now

    def on_append(self, old_log_end_offset: Offset, now: float) -> None:
        """The leader's log grows: a follower that had all of it until now was caught up until now."""
        if self.matched and self.stable_end_offset >= old_log_end_offset:
            self.caught_up_at = now

    def grant_time(self, now: float) -> None:
        """It joined the ISR: its lag counts from here."""
        self.caught_up_at = now

    def is_behind(self, log_end_offset: Offset) -> bool:
        """Whether anything of the leader's log is not known to be on its disk."""
        return not self.matched or self.stable_end_offset < log_end_offset

    def lags(self, log_end_offset: Offset, now: float, lag_max: float) -> bool:
        """Whether it was not caught up for longer than `lag_max` seconds. On an idle partition nobody lags; who follows
        a growing log always `d` seconds behind was caught up `2 * d` seconds ago at most."""
        return self.is_behind(log_end_offset) and now - self.caught_up_at > lag_max

    def __str__(self) -> str:
        if not self.matched:
            return f"{self.broker_id}@{self.incarnation} unmatched"
        return f"{self.broker_id}@{self.incarnation} stable={self.stable_end_offset} fetch={self.fetch_offset}"
