"""Connections that have proved nothing yet, such as handshakes in progress: few in all, and of one address. Pure.

An honest peer proves itself within milliseconds, while places that are held without purpose are held until a deadline.
So when there are too many, an old one gives way to the newest: the oldest of the address that has the most. An attacker
with a few addresses cancels its own connections, not those of others.

An address of IPv6 counts as its /64 network (`network_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from raftlog.security.principals import network_of

C = TypeVar("C", bound=Hashable)


class Newcomers(Generic[C]):
    """The newcomers of one listener.

    Invariant: `_networks` holds exactly the keys of `_network_of`, by network; no network in it is empty.
    """

    def __init__(self, most: Callable[[], int], most_of_address: int) -> None:
        """`most` returns how many there may be now; `most_of_address`: how many of them from one address."""
        self._most = most
        self._most_of_address = most_of_address
        self._network_of: dict[C, str] = {}
        """The newcomers with their networks, oldest first."""
        self._networks: dict[str, dict[C, None]] = {}

    def __len__(self) -> int:
        return len(self._network_of)

    def __contains__(self, newcomer: object) -> bool:
        return newcomer in self._network_of

    def arrive(self, newcomer: C, address: str) -> list[C]:
        """Take in a newcomer; return those that give way to it."""
        leaving = self.make_way(address)
        network = network_of(address)
        self._network_of[newcomer] = network
        self._networks.setdefault(network, {})[newcomer] = None
        return leaving

    def make_way(self, address: str) -> list[C]:
        """Remove and return those that give way to another newcomer from this address."""
        leaving = []
        of_address = self._networks.get(network_of(address), {})
        if len(of_address) >= self._most_of_address:
            leaving.append(next(iter(of_address)))
            self.leave(leaving[0])
        while self._network_of and len(self) >= self._most():
            leaving.append(self.give_way(address))
        return leaving

    def give_way(self, to: str = "") -> C:
        """Remove and return the newcomer that gives way, perhaps to another one from the address `to`. There must be
        one."""
        own = network_of(to)
        busiest = max(self._networks, key=lambda one: len(self._networks[one]))
        if own in self._networks and len(self._networks[own]) + 1 >= len(self._networks[busiest]):
            busiest = own
        leaving = next(iter(self._networks[busiest]))
        self.leave(leaving)
        return leaving

    def most_of_any(self, to: str = "") -> int:
        """Return how many newcomers the address with the most has, if another one arrives from the address `to`."""
        own = self._networks.get(network_of(to))
        return max((1 + len(own) if own else 0, *(len(one) for one in self._networks.values())))

    def renew(self, newcomer: C) -> None:
        """Make a newcomer the newest: it has shown that it is at work."""
        network = self._network_of.pop(newcomer, None)
        if network is not None:
            self._network_of[newcomer] = network
            of_address = self._networks[network]
            del of_address[newcomer]
            of_address[newcomer] = None

    def leave(self, newcomer: C) -> bool:
        """Forget a newcomer that has ended or proved itself; return whether it was one."""
        network = self._network_of.pop(newcomer, None)
        if network is None:
            return False
        of_address = self._networks[network]
        del of_address[newcomer]
        if not of_address:
            del self._networks[network]
        return True
