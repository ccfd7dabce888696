"""The links of a simulated node's quorum. The product's `Peers` decides which nodes to dial; here nodes have numbers,
not addresses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from jepsen_like.simulator.world.dialing import Dialing
from metadata.quorum.peers import Peers
from metadata.voters.configuration import Configuration
from raftlog.model import BrokerId, Endpoint


def endpoint_of(node: BrokerId) -> Endpoint:
    """The endpoint that a simulated node advertises."""
    return Endpoint(f"node-{node}", 1)


class QuorumDialing:
    """The links of one life of a node."""

    def __init__(self, own: BrokerId, initial: Iterable[BrokerId]) -> None:
        """`initial`: the voters that the folder was prepared with; they are dialed until the log names others."""
        self._whom = Peers(own, {voter: endpoint_of(voter) for voter in initial if voter != own})
        self._dialed: set[BrokerId] = set()
        self._dialing: Dialing | None = None

    def begin(self, dialing: Dialing) -> None:
        """From now on links may be made."""
        self._dialing = dialing
        self._reconcile()

    def on_configuration(self, configuration: Configuration) -> None:
        """The log names these voters."""
        self._whom.on_configuration(configuration)
        self._reconcile()

    def on_heard(self, peer: BrokerId, endpoint: Endpoint | None, *, proven: bool) -> None:
        """A peer dialed this node."""
        self._whom.on_heard(peer, endpoint, proven=proven)
        self._reconcile()

    def on_gone(self, peer: BrokerId) -> None:
        """The peer's link to this node has ended."""
        self._whom.on_gone(peer)
        self._reconcile()

    def on_told(self, peer: BrokerId, voters: Mapping[BrokerId, Endpoint]) -> None:
        """A peer has sent its list of voters."""
        if self._whom.on_told(peer, voters):
            self._reconcile()

    def set_lost(self, lost: bool) -> None:
        """`lost`: this node reaches no leader."""
        if self._whom.set_lost(lost):
            self._reconcile()

    def _reconcile(self) -> None:
        if self._dialing is None:
            return
        wanted = set(self._whom.wanted())
        for peer in sorted(self._dialed - wanted):
            self._dialing.disconnect(peer)
        for peer in sorted(wanted - self._dialed):
            self._dialing.connect(peer)
        self._dialed = wanted
