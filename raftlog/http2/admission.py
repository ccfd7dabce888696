"""The connections of a listener by standing: strangers', clients' and nodes'. A pure core.

A connection is a stranger's until one of its streams is accepted, with security because of its credential or
certificate. Strangers' connections are few, in all and of one address, and last for a short time
(`stranger_timeout_s`); if there are too many, one of the address with the most gives way
(`raftlog/system/newcomers.py`): an honest peer is admitted within milliseconds.
Clients may not use up all connections: some are reserved for the links between nodes, so that neither strangers nor
clients keep nodes from each other.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from raftlog.system.newcomers import Newcomers

from .limits import Http2Limits

C = TypeVar("C", bound=Hashable)


class Admission(Generic[C]):
    """The connections of one listener.

    Invariant: a connection is in exactly one of `_strangers`, `_clients` and `_nodes`.
    """

    def __init__(self, limits: Http2Limits, most: Callable[[], int], *, has_nodes: bool) -> None:
        """`most` returns how many connections there may be now. `has_nodes`: whether nodes connect at all."""
        self._limits = limits
        self._most = most
        self._reserved = limits.reserved_for_nodes if has_nodes else 0
        self._strangers: Newcomers[C] = Newcomers(lambda: limits.max_strangers, limits.max_strangers_per_address)
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
        leaving = self._strangers.make_way(address) + self.make_room(1, address)
        if self.count >= self._most():
            return [*leaving, connection]
        self._strangers.arrive(connection, address)
        return leaving

    def make_room(self, wanted: int, address: str = "") -> list[C]:
        """Return the strangers' connections that give way to `wanted` new ones, perhaps from `address`; they may be too
        few."""
        leaving = []
        while self._strangers and self.count + wanted > self._most():
            leaving.append(self._strangers.give_way(address))
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
        self._strangers.leave(connection)
