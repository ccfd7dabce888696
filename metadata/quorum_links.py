"""Links between quorum nodes: the handshake, and one direction each.

There is one connection per *ordered* pair of nodes: a node sends on the links that it dialed and receives on those
that it accepted, so that a fault on the link from A to B is a fault of exactly that direction. Every link begins with
a hello from both ends (cluster id, node id, directory id); whoever does not belong is dropped before a byte of his
reaches the engine.

What is *not* here: dialing again (the shell's), what the messages mean (`quorum_node.py`).
"""

from __future__ import annotations

from raftlog.model import BrokerId
from raftlog.ports import LinkHandler

from .quorum_node import QuorumNode


class QuorumLinks:
    """All links of one node, feeding one `QuorumNode`. Its `send` is the node's `send`."""

    def attach(self, node: QuorumNode) -> None:
        """The node that gets what arrives."""
        raise NotImplementedError

    def send(self, peer: BrokerId, message: bytes) -> None:
        """On the link dialed to this peer; dropped where there is none."""
        raise NotImplementedError

    @property
    def dialed(self) -> LinkHandler:
        """Handler of links that this node dialed; `link.peer` is whom it meant to reach."""
        raise NotImplementedError

    @property
    def accepted(self) -> LinkHandler:
        """Handler of links that others dialed; `link.peer` is not looked at, the hello names the peer."""
        raise NotImplementedError
