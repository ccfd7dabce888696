"""The connections of a listener by standing: strangers', clients' and nodes'. A pure core.

A connection is a stranger's until one of its streams is accepted, with security because of its credential or
certificate. Strangers' connections are few, in all and of one address, and last for a short time
(`stranger_timeout_s`); if there are too many, the oldest gives way: an honest peer is admitted within milliseconds.
Clients may not use up all connections: some are reserved for the links between nodes, so that neither strangers nor
clients keep nodes from each other.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from .limits import Http2Limits

C = TypeVar("C", bound=Hashable)


class Admission(Generic[C]):
    """The connections of one listener.

    Invariant: a connection is in exactly one of `_strangers`, `_clients` and `_nodes`; `_by_address` has the strangers.
    """

    def __init__(self, limits: Http2Limits, most: Callable[[], int], *, has_nodes: bool) -> None:
        """`most` returns how many connections there may be now. `has_nodes`: whether nodes connect at all."""
        self._limits = limits
        self._most = most
        self._reserved = limits.reserved_for_nodes if has_nodes else 0
        self._strangers: dict[C, str] = {}
        """Strangers' connections with their addresses, oldest first."""
        self._by_address: dict[str, dict[C, None]] = {}
        self._clients: set[C] = set()
        self._nodes: set[C] = set()

    @property
    def count(self) -> int:
        """The number of connections."""
        return len(self._strangers) + len(self._clients) + len(self._nodes)

    @property
    def strangers(self) -> int:
        """The number of strangers' connections."""
        return len(self._strangers)

    def arrive(self, connection: C, address: str) -> list[C]:
        """Take in a stranger's connection; return those that give way to it: itself, if there is no room."""
        leaving = []
        of_address = self._by_address.get(address, {})
        if len(of_address) >= self._limits.max_strangers_per_address:
            leaving.append(next(iter(of_address)))
        elif len(self._strangers) >= self._limits.max_strangers:
            leaving.append(next(iter(self._strangers)))
        for one in leaving:
            self.leave(one)
        leaving += self.make_room(1)
        if self.count >= self._most():
            return [*leaving, connection]
        self._strangers[connection] = address
        self._by_address.setdefault(address, {})[connection] = None
        return leaving

    def make_room(self, wanted: int) -> list[C]:
        """Return the strangers' connections that give way to `wanted` new ones, which may be too few."""
        leaving = []
        while self._strangers and self.count + wanted > self._most():
            leaving.append(next(iter(self._strangers)))
            self.leave(leaving[-1])
        return leaving

    def admit(self, connection: C, *, is_node: bool) -> bool:
        """Note that a stream of a connection is accepted; return False if clients have all that they may have."""
        if connection in self._nodes or (connection in self._clients and not is_node):
            return True
        if not is_node and len(self._clients) >= self.most_clients:
            return False
        if connection in self._strangers or connection in self._clients:
            self.leave(connection)
            (self._nodes if is_node else self._clients).add(connection)
        return True

    @property
    def most_clients(self) -> int:
        """How many connections of clients there may be now."""
        most = self._most()
        return most - min(self._reserved, most // 4)

    def leave(self, connection: C) -> None:
        """Forget a connection that has ended."""
        self._clients.discard(connection)
        self._nodes.discard(connection)
        address = self._strangers.pop(connection, None)
        if address is not None:
            of_address = self._by_address[address]
            del of_address[connection]
            if not of_address:
                del self._by_address[address]
