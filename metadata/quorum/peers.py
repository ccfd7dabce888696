"""The nodes that a quorum node dials, and their addresses: the voters that its log names, the nodes that dial it, and
nodes that others name.

Links to voters are needed to follow, to propose and to elect. The nodes that dial this one are observers, known only
by their own hello, and voters that the log here does not name yet. A node that is in neither group any more is no
longer dialed. A node that reaches no leader also dials the nodes that its peers name as voters, and those that these
name in turn: it may have been down while the voters changed (S10).

A hello is only a claim. A node that dialed any address that a hello names would reach for a stranger what only the node
may reach (a server-side request forgery). So the addresses of a peer are, in this order:

1. the one in its hello, if its certificate proves that it is this node;
2. the one of its broker's registration, of the log's voters, or of the folder that this node was prepared with;
3. the one that other peers report, of which this node knows where they are;
4. the one from which an unproven peer dialed this node: an observer that is not registered yet, or a voter that moved.

The first one is dialed. If it does not answer with this peer's hello, the next one is tried, and so on in turn.
"""

from __future__ import annotations

from collections.abc import Mapping

from metadata.voters.configuration import Configuration
from raftlog.model import BrokerId, Endpoint

from .protocol import PEERS_MAX


class Peers:
    """The peers that one node dials. After each change the caller reads `wanted`."""

    def __init__(self, own: BrokerId, initial: Mapping[BrokerId, Endpoint]) -> None:
        """`initial`: the other voters that the folder was prepared with; they are dialed until the log names others."""
        self._own = own
        self._initial = dict(initial)
        self._voters: dict[BrokerId, Endpoint | None] = dict.fromkeys(initial)
        self._registered: dict[BrokerId, Endpoint] = {}
        """The addresses in the registrations of brokers."""
        self._heard: dict[BrokerId, tuple[Endpoint | None, bool]] = {}
        """The addresses of peers that dialed this node, and whether a certificate proves them: peers with a link to
        this node, and voters that had one."""
        self._chosen: dict[BrokerId, Endpoint] = {}
        """The address at which each peer is dialed, while it is one of its addresses."""
        self._linked: set[BrokerId] = set()
        """The peers with a link to this node now."""
        self._told: dict[BrokerId, Mapping[BrokerId, Endpoint]] = {}
        """The voters that each dialed peer reports, with their addresses; the latest report last."""
        self._lost = False

    def on_configuration(self, configuration: Configuration) -> None:
        """Adopt the voters that the log names."""
        self._voters = {voter.node_id: voter.endpoint for voter in configuration.voters if voter.node_id != self._own}
        self._forget_the_gone()

    def on_registered(self, peer: BrokerId, endpoint: Endpoint | None) -> None:
        """Record the address in a broker's registration, or None if it was unregistered."""
        if endpoint is None:
            self._registered.pop(peer, None)
        elif self._registered.get(peer) != endpoint:
            self._registered[peer] = endpoint
            self._chosen.pop(peer, None)

    def on_heard(self, peer: BrokerId, endpoint: Endpoint | None, *, proven: bool = True) -> None:
        """Record that a peer dialed this node.

        `proven`: its certificate names it, so its word about its address counts; otherwise `endpoint` is at the host
        from which it dialed.
        """
        if proven and self._heard.get(peer) != (endpoint, True):
            self._chosen.pop(peer, None)
        self._heard[peer] = (endpoint, proven)
        self._linked.add(peer)

    def on_failed(self, peer: BrokerId) -> None:
        """Record that the peer did not answer at its address: the next one is tried."""
        known = self._addresses_of(peer)
        if known:
            chosen = self._chosen.get(peer, known[0])
            place = known.index(chosen) if chosen in known else -1
            self._chosen[peer] = known[(place + 1) % len(known)]

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
        self._chosen = {peer: where for peer, where in self._chosen.items() if peer in wanted}
        addresses = {peer: self.address_of(peer) for peer in sorted(wanted - {self._own})}
        return {peer: address for peer, address in addresses.items() if address is not None}

    def address_of(self, peer: BrokerId) -> Endpoint | None:
        """Return the address at which to dial a peer, or None if it is unknown."""
        known = self._addresses_of(peer)
        chosen = self._chosen.get(peer)
        return chosen if chosen in known else next(iter(known), None)

    def trusted_address_of(self, peer: BrokerId) -> Endpoint | None:
        """Return the address of a peer in the log or in this node's folder, or None."""
        return self._registered.get(peer) or self._voters.get(peer) or self._initial.get(peer)

    def _addresses_of(self, peer: BrokerId) -> list[Endpoint]:
        """Return the addresses of a peer, the most trusted first."""
        heard, proven = self._heard.get(peer, (None, False))
        known = [heard if proven else None, self._registered.get(peer), self._voters.get(peer), self._initial.get(peer)]
        known += [voters[peer] for voters in reversed(self._told.values()) if peer in voters][:1]
        known.append(heard)
        return list(dict.fromkeys(where for where in known if where is not None))

    def _forget_the_gone(self) -> None:
        kept = self._linked | self._voters.keys()
        self._heard = {peer: where for peer, where in self._heard.items() if peer in kept}
