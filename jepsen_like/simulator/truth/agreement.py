"""What all nodes of a cluster agree on (S5, S7): one leader of the quorum a term, the same events at each index of the
metadata log, and the image that they lead to.

A node's engine is looked at after each of its events that changed something. Its image is made of the entries alone,
which are the same everywhere and bring the same events: so whoever applies an entry first has its image looked at, and
the others when everything is looked at (`check_image`).
"""

from __future__ import annotations

from collections.abc import Sequence

from jepsen_like.simulator.brokers.node import SimNode
from jepsen_like.simulator.quorum.probe import Mark, check_inside, image_of, mark_of
from jepsen_like.simulator.world.heap import Life
from jepsen_like.simulator.world.violation import Violation
from metadata.view import MetadataEvent
from raftlog.model import BrokerId


class Agreement:
    """Checks nodes against what was seen of others; raises `Violation`, and what the product raises of itself."""

    def __init__(self) -> None:
        self._terms: dict[int, BrokerId] = {}
        self._marks: dict[BrokerId, tuple[Life | None, Mark]] = {}
        """How each node's engine was, in which life."""
        self._applied: dict[int, Sequence[MetadataEvent]] = {}
        """Index of the metadata log → the events that it brought."""
        self._first_seen = 0
        """Up to here some node's image was looked at, after each entry."""
        self._seen: dict[BrokerId, tuple[Life | None, int]] = {}
        """Each node's own image: in which life, after which entry."""

    def check_quorum(self, node: SimNode) -> None:
        """Its quorum was at work."""
        assert node.quorum is not None
        quorum = node.quorum.node
        seen = node.life, mark_of(quorum)
        if self._marks.get(node.node_id) == seen:
            return
        self._marks[node.node_id] = seen
        check_inside(quorum)
        index = image_of(quorum).index
        if index > self._first_seen:
            self._first_seen = index
            self.check_image(node)
        mark = seen[1]
        if mark.leads:
            first = self._terms.setdefault(mark.term, node.node_id)
            if first != node.node_id:
                raise Violation(f"S7: nodes {first} and {node.node_id} both lead the quorum in term {mark.term}")

    def check_image(self, node: SimNode) -> None:
        """S7: what the entries made is right by itself."""
        assert node.quorum is not None
        quorum = node.quorum.node
        seen = node.life, image_of(quorum).index
        if self._seen.get(node.node_id) != seen:
            self._seen[node.node_id] = seen
            quorum.check_invariants()

    def check_events(self, node_id: BrokerId, index: int, events: Sequence[MetadataEvent]) -> None:
        """S7: one entry brings the same events everywhere."""
        if self._applied.setdefault(index, events) != events:
            raise Violation(f"S7: node {node_id} applied something else at index {index}: {events}")
