"""The throttle of replica moves: token buckets, one for everything that this broker sends, one for each receiver.

Only replicas that a reassignment is adding are throttled, and only until they are in sync (KIP-73 lists them in the
configuration; here the partition's record names them). Both rates are enforced at the sender. A receiver's rate is
shared evenly by all leaders that send to it: every broker sees the same records, so each knows their number without
asking. A share that a leader does not use is lost until its partitions are done.

A bucket holds at most one second's worth. It may be overdrawn by one message: a batch is sent whole, however low the
rate, and paid for afterwards. So in any `t` seconds no more than `rate * (t + 1)` bytes and one message are sent.

Pure: time comes in as monotonic seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from raftlog.model import UNTHROTTLED, BrokerId, ReplicationThrottle

BURST_SECONDS = 1.0
"""The size of a bucket, in seconds of its rate: a receiver that was busy may catch up on that much."""


class TokenBucket:
    """A token bucket; `rate` is in bytes per second."""

    __slots__ = ("_at", "_tokens", "rate")

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self._tokens = rate * BURST_SECONDS
        self._at = now

    def change_rate(self, rate: float, now: float) -> None:
        """Change the rate. A debt is paid at the new rate, and savings are capped by it."""
        self.room(now)
        self.rate = rate
        self._tokens = min(self._tokens, rate * BURST_SECONDS)

    def room(self, now: float) -> float:
        """Return the bytes that may be sent; none if not above 0."""
        self._tokens = min(self.rate * BURST_SECONDS, self._tokens + self.rate * max(0.0, now - self._at))
        self._at = max(self._at, now)
        return self._tokens

    def take(self, count: int) -> None:
        """Take `count` bytes that were sent, perhaps more than there was room for."""
        self._tokens -= count


class MoveThrottle:
    """The throttle of one broker for replicas that are being added.

    Invariant: there is a bucket for each present receiver, and for no other.
    """

    def __init__(self) -> None:
        self._throttle = UNTHROTTLED
        self._sent: TokenBucket | None = None
        self._received: dict[BrokerId, TokenBucket] = {}

    def update(self, throttle: ReplicationThrottle, leaders_of: Mapping[BrokerId, int], now: float) -> None:
        """Set the rates and, for each receiver, the number of brokers that send to it, as the view shows them."""
        if throttle != self._throttle:
            self._throttle = throttle
            rate = throttle.leader_rate
            self._sent = None if rate is None else TokenBucket(rate, now)
            self._received.clear()
        if throttle.follower_rate is None:
            return
        for follower in [known for known in self._received if known not in leaders_of]:
            del self._received[follower]
        for follower, leaders in leaders_of.items():
            share = throttle.follower_rate / max(1, leaders)
            bucket = self._received.get(follower)
            if bucket is None:
                self._received[follower] = TokenBucket(share, now)
            elif bucket.rate != share:
                bucket.change_rate(share, now)

    def room(self, follower: BrokerId, now: float) -> float:
        """Return the bytes that may be sent to this receiver now; infinite without a throttle, none if not above 0."""
        return min((bucket.room(now) for bucket in self._buckets(follower)), default=math.inf)

    def sent(self, follower: BrokerId, count: int) -> None:
        """Take `count` bytes that were sent to this receiver."""
        for bucket in self._buckets(follower):
            bucket.take(count)

    def _buckets(self, follower: BrokerId) -> list[TokenBucket]:
        received = self._received.get(follower)
        return [bucket for bucket in (self._sent, received) if bucket is not None]
