"""The nodes that a quorum node dials, and their addresses: the voters that its log names, the nodes that dial it, and
nodes that others name.

Links to voters are needed to follow, to propose and to elect. The nodes that dial this one are observers, known only
by their own hello, and voters that the log here does not name yet. A node that is in neither group any more is no
longer dialed. A node that reaches no leader also dials the nodes that its peers name as voters, and those that these
name in turn: it may have been down while the voters changed (S10).

The address of a peer is the one in its last hello, else the one in the log, else the one in this node's folder, else
the latest one that other peers report.
"""

from __future__ import annotations

from collections.abc import Mapping

from metadata.voters.configuration import Configuration
from raftlog.model import BrokerId, Endpoint

from .protocol import PEERS_MAX


class WhomToDial:
    """The peers that one node dials. After each change the caller reads `wanted`."""

    def __init__(self, own: BrokerId, initial: Mapping[BrokerId, Endpoint]) -> None:
        """`initial`: the other voters that the folder was prepared with; they are dialed until the log names others."""
        self._own = own
        self._initial = dict(initial)
        self._voters: dict[BrokerId, Endpoint | None] = dict.fromkeys(initial)
        self._heard: dict[BrokerId, Endpoint | None] = {}
        """The addresses that peers gave in their last hello: peers with a link to this node, and voters that
        had one."""
        self._linked: set[BrokerId] = set()
        """The peers with a link to this node now."""
        self._told: dict[BrokerId, Mapping[BrokerId, Endpoint]] = {}
        """The voters that each dialed peer reports, with their addresses; the latest report last."""
        self._lost = False

    def on_configuration(self, configuration: Configuration) -> None:
        """Adopt the voters that the log names."""
        self._voters = {voter.node_id: voter.endpoint for voter in configuration.voters if voter.node_id != self._own}
        self._forget_the_gone()

    def on_heard(self, peer: BrokerId, endpoint: Endpoint | None) -> None:
        """Record that a peer dialed this node."""
        self._heard[peer] = endpoint
        self._linked.add(peer)

    def on_gone(self, peer: BrokerId) -> None:
        """Record that a peer's link to this node closed.

        A voter is still dialed, at the address of its last hello, for as long as it is a voter.
        """
        self._linked.discard(peer)
        self._forget_the_gone()

    def on_told(self, peer: BrokerId, voters: Mapping[BrokerId, Endpoint]) -> bool:
        """Record the voters that a dialed peer reports. Returns whether they matter now."""
        self._told.pop(peer, None)
        self._told[peer] = dict(voters)
        return self._lost

    def set_lost(self, lost: bool) -> bool:
        """Set whether this node reaches no leader. Returns whether that changed."""
        news, self._lost = lost != self._lost, lost
        return news

    def wanted(self) -> dict[BrokerId, Endpoint]:
        """Return the peers to dial, with their addresses, and forget the reports of all others."""
        wanted = {*self._voters, *self._heard}
        asked = list(wanted) if self._lost else []
        while asked and len(wanted) < PEERS_MAX:
            news = self._told.get(asked.pop(), {}).keys() - wanted
            wanted |= news
            asked += sorted(news)
        self._told = {peer: voters for peer, voters in self._told.items() if peer in wanted}
        addresses = {peer: self.address_of(peer) for peer in sorted(wanted - {self._own})}
        return {peer: address for peer, address in addresses.items() if address is not None}

    def address_of(self, peer: BrokerId) -> Endpoint | None:
        """Return the address at which to dial a peer, or None if it is unknown."""
        known = self._heard.get(peer) or self._voters.get(peer) or self._initial.get(peer)
        return known or next((voters[peer] for voters in reversed(self._told.values()) if peer in voters), None)

    def _forget_the_gone(self) -> None:
        kept = self._linked | self._voters.keys()
        self._heard = {peer: where for peer, where in self._heard.items() if peer in kept}
