"""Quotas of this node: token buckets by user and by client address, and counts of what a caller holds open.

A rate is a token bucket that may go into debt: a request that was already read is served, and its caller waits until
the debt is paid before the next (Kafka's way, so that a batch larger than the bucket passes at its rate). A caller is
charged as a user and as an address, and waits for the slower of the two. Each node enforces the limits for itself, as
in Kafka: a user who reaches three nodes has three times the rate.

A pure core. The number of buckets is bounded: those that were used least recently are forgotten, which by then are
full again unless more entities than there is room for are active at once.
"""

from __future__ import annotations

import enum
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator

import msgspec

from raftlog.security.principals import USER, Caller

ADDRESS = "Address"
MAX_BUCKETS = 50_000
MAX_DEBT_SECONDS = 30.0
"""The longest wait of a caller, in seconds; the debt beyond it is forgiven."""


MAX_WAIT_SECONDS = 3600.0
"""The longest wait for an amount, in seconds; for one that is never allowed, too."""


class Rate(enum.Enum):
    """A limited rate: the field of the limits, the seconds in which the limit is counted, and the burst in seconds."""

    BYTES_IN = ("bytes_in_per_second", 1, 2.0)
    BYTES_OUT = ("bytes_out_per_second", 1, 2.0)
    REQUESTS = ("requests_per_second", 1, 2.0)
    METADATA_COMMANDS = ("metadata_commands_per_second", 1, 10.0)
    TOPICS_CREATED = ("topics_created_per_hour", 3600, 3600.0)
    PARTITIONS_CREATED = ("partitions_created_per_hour", 3600, 3600.0)

    def __init__(self, field: str, per_seconds: int, burst_seconds: float) -> None:
        self.field = field
        self.per_seconds = per_seconds
        self.burst_seconds = burst_seconds


class Held(enum.Enum):
    """Something of which a caller may hold a number at a time: the field of the limits."""

    CONNECTIONS = "connections"
    OPEN_TRANSACTIONS = "open_transactions"


class Limits(msgspec.Struct, frozen=True):
    """The resolved limits of one entity: a rate in units a second, a count as it is; what is missing has no limit."""

    rates: dict[Rate, float]
    counts: dict[Held, int]


class TokenBucket:
    """Tokens that come at a rate, up to a burst, and may be owed."""

    __slots__ = ("_at", "_burst", "_rate", "_tokens")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        """`rate` in tokens a second; `now` in seconds of a monotonic clock."""
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._at = now

    def set_rate(self, rate: float, burst: float, now: float) -> None:
        """Change the rate; tokens that came at the old one stay, up to the new burst."""
        if rate != self._rate or burst != self._burst:
            self._refill(now)
            self._rate, self._burst = rate, burst
            self._tokens = min(self._tokens, burst)

    def take(self, amount: float, now: float) -> float:
        """Take tokens, into debt if necessary. Return the seconds after which there is no debt; 0: there is none."""
        self._refill(now)
        self._tokens -= amount
        return self._wait()

    def wait(self, now: float) -> float:
        """Return the seconds until there is no debt."""
        self._refill(now)
        return self._wait()

    def wait_for(self, amount: float, now: float) -> float:
        """Return the seconds until an amount can be taken without debt, at most `MAX_WAIT_SECONDS`; 0: now."""
        self._refill(now)
        missing = amount - self._tokens
        if missing <= 0:
            return 0.0
        return MAX_WAIT_SECONDS if amount > self._burst else min(missing / self._rate, MAX_WAIT_SECONDS)

    def _refill(self, now: float) -> None:
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self._at) * self._rate)
        self._at = max(self._at, now)

    def _wait(self) -> float:
        if self._tokens >= 0:
            return 0.0
        if self._rate <= 0:
            return MAX_DEBT_SECONDS
        if -self._tokens > MAX_DEBT_SECONDS * self._rate:
            self._tokens = -MAX_DEBT_SECONDS * self._rate
        return -self._tokens / self._rate


class Quotas:
    """The buckets and counts of this node.

    `limits_of` returns an entity's resolved limits (`User:alice`, `Address:10.0.0.1`), or None if it has none;
    `is_limited` returns whether any limit exists at all, which keeps an unlimited cluster's requests free of charge.
    """

    def __init__(self, limits_of: Callable[[str], Limits | None], is_limited: Callable[[], bool]) -> None:
        self._limits_of = limits_of
        self._is_limited = is_limited
        self._buckets: OrderedDict[tuple[str, Rate], TokenBucket] = OrderedDict()
        self._held: Counter[tuple[str, Held]] = Counter()
        self.delays: Counter[Rate] = Counter()
        """Charges after which the caller has to wait."""

    def charge(self, caller: Caller, rate: Rate, amount: float, now: float) -> float:
        """Charge a caller. Return the seconds for which its next request has to wait; 0: none."""
        if not self._is_limited():
            return 0.0
        wait = max((bucket.take(amount, now) for bucket in self._buckets_of(caller, rate, now)), default=0.0)
        if wait:
            self.delays[rate] += 1
        return wait

    def wait(self, caller: Caller, rate: Rate, now: float) -> float:
        """Return the seconds for which the caller has to wait before anything is charged; 0: none."""
        if not self._is_limited():
            return 0.0
        return max((bucket.wait(now) for bucket in self._buckets_of(caller, rate, now)), default=0.0)

    def wait_for(self, caller: Caller, rate: Rate, amount: float, now: float) -> float:
        """Return the seconds for which the caller has to wait before it may use an amount at once; 0: none."""
        if not self._is_limited():
            return 0.0
        return max((bucket.wait_for(amount, now) for bucket in self._buckets_of(caller, rate, now)), default=0.0)

    def hold(self, caller: Caller, held: Held) -> bool:
        """Count one more that the caller holds. Return False, and count nothing, if that is over a limit.

        Counted without limits, too, so that a limit set later knows what is already held.
        """
        entities = _entities(caller)
        if self._is_limited():
            for entity in entities:
                limits = self._limits_of(entity)
                most = None if limits is None else limits.counts.get(held)
                if most is not None and self._held[entity, held] >= most:
                    return False
        for entity in entities:
            self._held[entity, held] += 1
        return True

    def release(self, caller: Caller, held: Held) -> None:
        """Count one fewer; the caller is the one that `hold` counted."""
        for entity in _entities(caller):
            key = (entity, held)
            self._held[key] -= 1
            if self._held[key] <= 0:
                del self._held[key]

    def holds(self, caller: Caller, held: Held) -> int:
        """Return the number that the caller's user holds."""
        return self._held[_entities(caller)[0], held]

    def _buckets_of(self, caller: Caller, rate: Rate, now: float) -> Iterator[TokenBucket]:
        for entity in _entities(caller):
            limits = self._limits_of(entity)
            per_second = None if limits is None else limits.rates.get(rate)
            if per_second is not None:
                yield self._bucket(entity, rate, per_second, now)

    def _bucket(self, entity: str, rate: Rate, per_second: float, now: float) -> TokenBucket:
        key = (entity, rate)
        burst = per_second * rate.burst_seconds
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= MAX_BUCKETS:
                self._buckets.popitem(last=False)
            bucket = self._buckets[key] = TokenBucket(per_second, burst, now)
        else:
            bucket.set_rate(per_second, burst, now)
            self._buckets.move_to_end(key)
        return bucket


def _entities(caller: Caller) -> tuple[str, ...]:
    """Return the entities that a caller counts for; nodes of the cluster count for none."""
    if caller.node is not None:
        return ()
    user = f"{USER}:{caller.principal.name}"
    return (user, f"{ADDRESS}:{caller.host}") if caller.host else (user,)
