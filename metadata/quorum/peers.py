"""Whom a quorum node dials, and where: the voters that its log names, whoever dials it, and whom it is told of.

The first are needed to follow, to propose and to elect; the second are observers, which only their own hello tells of,
and voters that the log here does not name yet. Somebody who is neither any more is dialed no longer. A node that
reaches no leader dials besides whomever those that it dials call voters, and whomever these call voters in turn: it may
have been away while the voters changed (S10).

Where a peer listens: where its last hello said, else where the log says, else where this node's folder says, else where
others say, the latest word first.
"""

from __future__ import annotations

from collections.abc import Mapping

from metadata.voters.configuration import Configuration
from raftlog.model import BrokerId, Endpoint

from .protocol import PEERS_MAX


class WhomToDial:
    """One node's. `wanted` after each change."""

    def __init__(self, own: BrokerId, initial: Mapping[BrokerId, Endpoint]) -> None:
        """`initial`: the other voters that the folder was prepared with, dialed until the log says more."""
        self._own = own
        self._initial = dict(initial)
        self._voters: dict[BrokerId, Endpoint | None] = dict.fromkeys(initial)
        self._heard: dict[BrokerId, Endpoint | None] = {}
        """Where whoever has a link to this node says that it listens, and voters that had one."""
        self._linked: set[BrokerId] = set()
        """Who has a link to this node now."""
        self._told: dict[BrokerId, Mapping[BrokerId, Endpoint]] = {}
        """Whom each peer that is dialed calls voters, and where they are; the latest word last."""
        self._lost = False

    def on_configuration(self, configuration: Configuration) -> None:
        """The log names these voters."""
        self._voters = {voter.node_id: voter.endpoint for voter in configuration.voters if voter.node_id != self._own}
        self._forget_the_gone()

    def on_heard(self, peer: BrokerId, endpoint: Endpoint | None) -> None:
        """A peer dialed us."""
        self._heard[peer] = endpoint
        self._linked.add(peer)

    def on_gone(self, peer: BrokerId) -> None:
        """Its link to us is over. A voter is dialed on; where its last hello said, for as long as it is one."""
        self._linked.discard(peer)
        self._forget_the_gone()

    def on_told(self, peer: BrokerId, voters: Mapping[BrokerId, Endpoint]) -> bool:
        """Whom a peer that was dialed calls voters. Returns whether that matters now."""
        self._told.pop(peer, None)
        self._told[peer] = dict(voters)
        return self._lost

    def set_lost(self, lost: bool) -> bool:
        """Whether this node reaches no leader. Returns whether that is news."""
        news, self._lost = lost != self._lost, lost
        return news

    def wanted(self) -> dict[BrokerId, Endpoint]:
        """Whom to dial, by number, and where. What was said by others than those is forgotten."""
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
        """Where to dial a peer; None where nobody ever said."""
        known = self._heard.get(peer) or self._voters.get(peer) or self._initial.get(peer)
        return known or next((voters[peer] for voters in reversed(self._told.values()) if peer in voters), None)

    def _forget_the_gone(self) -> None:
        kept = self._linked | self._voters.keys()
        self._heard = {peer: where for peer, where in self._heard.items() if peer in kept}
