"""The order in which checks of passwords get a thread, and which are dropped when too many wait. A pure core.

**Turns.** Hosts take turns, one check each, so that one that waits with many checks delays another by one of them (fair
queueing, RFC 970). Preferred checks come before the others: those from hosts that had a success recently, and those of
credentials that had. After `PREFERRED_TURNS` of them, one of the others is taken if one waits, so that neither kind
can keep the other out.

**Drops.** When the room is used up, the newest check of the host with the most is dropped (like the fattest flow of RFC
8290, section 4.1), and not the check that arrives. So a host with one check loses it only if no host has two: then an
arriving check that is preferred replaces the one that is not and whose turn is last, and any other is dropped itself.

A name is never a reason to prefer a check: whether a login is fast would tell that the name exists (S12). A credential
is one, because it takes the password to present it.

A host of IPv6 is its /64 network, whose addresses all belong to one customer (RFC 6177); a single machine has them all.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from typing import Generic, TypeAlias, TypeVar

import msgspec

MAX_WAITING = 64
"""Most checks that wait for a thread."""
MAX_WAITING_OF_HOST = 16
"""Most of them from one host."""
PREFERRED_TURNS = 3
"""Most preferred checks in a row while others wait."""

K = TypeVar("K")

_Flow: TypeAlias = tuple[str, bool]
"""A host, and whether its checks are of credentials that had a success recently: these do not wait for the others from
the same address, which may be that of many machines."""


class Waiting(msgspec.Struct, Generic[K], frozen=True):
    """A check that waits for a thread."""

    key: K
    """Identifies the check; unique among those that wait."""
    host: str
    """See `network_of` in `raftlog/security/principals.py`."""
    known_credential: bool
    """Whether this name and password had a success recently."""
    known_host: bool
    """Whether the host had a success recently."""

    @property
    def is_preferred(self) -> bool:
        return self.known_credential or self.known_host


class Dropped(msgspec.Struct, Generic[K], frozen=True):
    """A check that gets no thread."""

    key: K
    is_of_busiest_host: bool
    """Whether its host had used its share; otherwise all hosts together had used up the room."""


class CheckQueue(Generic[K]):
    """The checks that wait for a thread.

    Invariant: `_hosts` counts exactly the checks in `_preferred` and `_others`, whose flows are never empty.
    """

    def __init__(self) -> None:
        self._preferred: OrderedDict[_Flow, deque[Waiting[K]]] = OrderedDict()
        """The flows in the order of their turns."""
        self._others: OrderedDict[_Flow, deque[Waiting[K]]] = OrderedDict()
        self._hosts: Counter[str] = Counter()
        self._preferred_in_row = 0

    def __len__(self) -> int:
        return self._hosts.total()

    def put(self, check: Waiting[K]) -> Dropped[K] | None:
        """Add a check; return the one that is dropped for it, which may be the check itself."""
        self._append(check)
        if self._hosts[check.host] > MAX_WAITING_OF_HOST:
            return self._drop(check.host, is_of_busiest_host=True)
        if len(self) > MAX_WAITING:
            return self._drop_of_busiest(check)
        return None

    def take(self) -> K | None:
        """Remove and return the check whose turn it is; None: none waits."""
        if self._preferred and (self._preferred_in_row < PREFERRED_TURNS or not self._others):
            self._preferred_in_row += 1
            return self._next_of(self._preferred)
        self._preferred_in_row = 0
        return self._next_of(self._others) if self._others else None

    # --- Inside ---

    def _append(self, check: Waiting[K]) -> None:
        flows = self._preferred if check.is_preferred else self._others
        flows.setdefault((check.host, check.known_credential), deque()).append(check)
        self._hosts[check.host] += 1

    def _next_of(self, flows: OrderedDict[_Flow, deque[Waiting[K]]]) -> K:
        flow, waiting = flows.popitem(last=False)
        check = waiting.popleft()
        if waiting:
            flows[flow] = waiting
        self._forget(check.host)
        return check.key

    def _drop_of_busiest(self, arrived: Waiting[K]) -> Dropped[K]:
        most = max(self._hosts.values())
        busiest = [host for host, count in self._hosts.items() if count == most]
        if most > 1:
            # Among equals the arriving check's host, which would have more than its share, then one without success.
            host = arrived.host if arrived.host in busiest else min(busiest, key=self._has_preferred)
            return self._drop(host, is_of_busiest_host=True)
        if arrived.is_preferred and self._others:
            return self._drop(next(reversed(self._others))[0], is_of_busiest_host=False)
        return self._drop(arrived.host, is_of_busiest_host=False)

    def _has_preferred(self, host: str) -> bool:
        return any((host, known) in self._preferred for known in (False, True))

    def _drop(self, host: str, *, is_of_busiest_host: bool) -> Dropped[K]:
        """Drop the newest check of a host; of one that is not preferred if it has any, and of a known credential
        last."""
        for flows, known in ((self._others, False), (self._preferred, False), (self._preferred, True)):
            waiting = flows.get((host, known))
            if waiting is not None:
                check = waiting.pop()
                if not waiting:
                    del flows[host, known]
                self._forget(host)
                return Dropped(check.key, is_of_busiest_host)
        raise AssertionError(f"{host} has no check")

    def _forget(self, host: str) -> None:
        self._hosts[host] -= 1
        if not self._hosts[host]:
            del self._hosts[host]
