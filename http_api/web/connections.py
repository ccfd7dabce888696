"""The API's connections: strangers' and known ones, idle and at work, and the bytes that wait in them. A pure core.

A connection is a stranger's until one of its requests is authenticated; an API that takes requests without a credential
has no strangers. Strangers are few, in all and of one address, they have little time, and may send little.

If there is no room for another connection, an idle one gives way: one of the address that has the most, strangers
first, then the one that has been idle for longest. A known one that serves a request is never cut for that; requests
in progress have bounds of their own. A single address may not have all connections.

Heads that are not complete, and requests that wait behind another one of their connection, are held in memory before
their sender is known. All connections together may hold a number of such bytes; beyond it, the one that holds the
most gives way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from raftlog.security.principals import network_of
from raftlog.system.newcomers import Newcomers

from .limits import Limits

SHARE_OF_HANDSHAKES = 8
"""With TLS, one part in this many of all connections is for handshakes."""

C = TypeVar("C", bound=Hashable)


class Connections(Generic[C]):
    """The connections of one listener. Times are seconds of any one monotonic clock.

    Invariant: `_networks` has every connection. A stranger is in `_strangers`, a known one in `_idle` (under its
    network) or in `_busy`; a stranger may be in `_busy`, too. `waiting_bytes` is the sum of `_waiting`.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.most_now: Callable[[], int | None] = lambda: None
        """Returns the number of connections allowed at present, if it is less than the limit."""
        self.shares_with_handshakes = False
        """Whether some of them are for TLS handshakes."""
        self._networks: dict[C, str] = {}
        """The connections with their networks."""
        self._of_network: Counter[str] = Counter()
        self._strangers: Newcomers[C] = Newcomers(lambda: limits.max_strangers, limits.max_strangers_per_address)
        self._deadlines: dict[C, float] = {}
        """The time at which each stranger has to be known, the earliest first."""
        self._idle: dict[str, dict[C, None]] = {}
        """Known connections without a request, by network, the longest idle first."""
        self._busy: set[C] = set()
        self._waiting: dict[C, int] = {}
        """Bytes that wait, of connections that have any."""
        self.waiting_bytes = 0

    def __len__(self) -> int:
        return len(self._networks)

    @property
    def most(self) -> int:
        """How many connections there may be now."""
        return self._all - self.most_handshakes() if self.shares_with_handshakes else self._all

    def most_handshakes(self) -> int:
        """Return how many TLS handshakes there may be now."""
        return min(self._limits.max_handshakes, max(1, self._all // SHARE_OF_HANDSHAKES))

    @property
    def _all(self) -> int:
        most, now = self._limits.max_connections, self.most_now()
        return most if now is None else min(most, now)

    @property
    def strangers(self) -> int:
        """The number of strangers' connections."""
        return len(self._strangers)

    def is_stranger(self, connection: C) -> bool:
        """Return whether no request of a connection was authenticated yet, and one has to be."""
        return connection in self._strangers

    def arrive(self, connection: C, address: str, now: float, *, is_known: bool) -> list[C]:
        """Take in a connection, a stranger's unless `is_known`; return those that give way to it: itself, if there is
        no room."""
        leaving = [] if is_known else self._strangers.make_way(address)
        for one in leaving:
            self.leave(one)
        network = network_of(address)
        most = self.most
        if self._of_network[network] >= max(1, most - most // self._limits.share_of_others):
            own = self._idle_of(network)
            if own is None:
                return [*leaving, connection]
            leaving.append(own)
            self.leave(own)
        while len(self) >= most:
            other = self._gives_way(address)
            if other is None:
                return [*leaving, connection]
            leaving.append(other)
            self.leave(other)
        self._networks[connection] = network
        self._of_network[network] += 1
        if is_known:
            self._idle.setdefault(network, {})[connection] = None
        else:
            self._strangers.arrive(connection, address)
            self._deadlines[connection] = now + self._limits.stranger_timeout_s
        return leaving

    def begin(self, connection: C) -> None:
        """Note that a whole head has arrived: a request is served, or waits for its turn."""
        if connection in self._networks and connection not in self._busy:
            self._busy.add(connection)
            self._strangers.renew(connection)
            self._leave_idle(connection)

    def end(self, connection: C) -> None:
        """Note that the last of a connection's requests has been served."""
        if connection in self._busy:
            self._busy.discard(connection)
            if connection not in self._strangers:
                self._idle.setdefault(self._networks[connection], {})[connection] = None

    def recognize(self, connection: C) -> None:
        """Note that a request of a connection, perhaps of another listener's, was authenticated."""
        if self._strangers.leave(connection):
            del self._deadlines[connection]
            if connection not in self._busy:
                self._idle.setdefault(self._networks[connection], {})[connection] = None

    def hold(self, connection: C, count: int) -> list[C]:
        """Note that `count` bytes of a connection wait; return the connections that give way because of them."""
        if connection not in self._networks:
            return []
        self.waiting_bytes += count - self._waiting.pop(connection, 0)
        if count:
            self._waiting[connection] = count
        leaving = []
        if connection in self._strangers and count > self._limits.max_stranger_bytes:
            leaving.append(connection)
            self.leave(connection)
        while self.waiting_bytes > self._limits.max_waiting_bytes:
            largest = max(self._waiting, key=lambda one: self._waiting[one])
            leaving.append(largest)
            self.leave(largest)
        return leaving

    def overdue(self, now: float) -> list[C]:
        """Return the strangers whose time is over, without those at work: their turn comes after their answer."""
        leaving = []
        for connection, deadline in self._deadlines.items():
            if deadline > now:
                break
            if connection not in self._busy:
                leaving.append(connection)
        for connection in leaving:
            self.leave(connection)
        return leaving

    def leave(self, connection: C) -> None:
        """Forget a connection that has ended, or that gave way."""
        network = self._networks.get(connection)
        if network is None:
            return
        self._leave_idle(connection)
        del self._networks[connection]
        self._of_network[network] -= 1
        if not self._of_network[network]:
            del self._of_network[network]
        self._strangers.leave(connection)
        self._deadlines.pop(connection, None)
        self._busy.discard(connection)
        self.waiting_bytes -= self._waiting.pop(connection, 0)

    def _leave_idle(self, connection: C) -> None:
        network = self._networks[connection]
        of_network = self._idle.get(network, {})
        if connection in of_network:
            del of_network[connection]
            if not of_network:
                del self._idle[network]

    def _idle_of(self, network: str) -> C | None:
        """Return the idle connection of a network that gives way to another one of its own."""
        for stranger in self._deadlines:
            if self._networks[stranger] == network and stranger not in self._busy:
                return stranger
        return next(iter(self._idle.get(network, ())), None)

    def _gives_way(self, to: str) -> C | None:
        """Return the connection that gives way to one from the address `to`; None if all are at work.

        The only one of its address gives way only if no address has several.
        """
        busiest = max(self._idle, key=lambda one: len(self._idle[one]), default=None)
        several = busiest is not None and len(self._idle[busiest]) > 1
        if self._strangers and (self._strangers.most_of_any(to) > 1 or not several):
            return self._strangers.give_way(to)
        if busiest is None:
            return None
        own = network_of(to)
        if own in self._idle and len(self._idle[own]) + 1 >= len(self._idle[busiest]):
            busiest = own
        return next(iter(self._idle[busiest]))
