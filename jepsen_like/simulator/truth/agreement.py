"""Agreement of all nodes (S5, S7): one quorum leader for each term, the same events at each index of the metadata log,
and the resulting image.

A node's engine is checked after each of its events that changed something. Its image is made from the entries alone,
which are the same everywhere and cause the same events: so the image of the first node that applies an entry is checked
at once, and the others during the full checks (`check_image`).
"""

from __future__ import annotations

from collections.abc import Sequence

from jepsen_like.simulator.brokers.node import SimNode
from jepsen_like.simulator.world.heap import Life
from jepsen_like.simulator.world.violation import Violation
from metadata.raft.engine import VoterFacts
from metadata.view import MetadataEvent
from raftlog.model import BrokerId


class Agreement:
    """Compares each node with the others; raises `Violation`, and the errors of the product's own checks."""

    def __init__(self) -> None:
        self._terms: dict[int, BrokerId] = {}
        self._marks: dict[BrokerId, tuple[Life | None, VoterFacts]] = {}
        """Each node's life and the last known state of its engine."""
        self._applied: dict[int, Sequence[MetadataEvent]] = {}
        """Index of the metadata log → the events that it caused."""
        self._first_seen = 0
        """The index up to which some node's image was checked after each entry."""
        self._seen: dict[BrokerId, tuple[Life | None, int]] = {}
        """Node → its life, and the last entry after which its own image was checked."""

    def check_quorum(self, node: SimNode) -> None:
        """Check a node whose quorum has done something."""
        assert node.quorum is not None
        quorum = node.quorum.node
        seen = node.life, quorum.engine.voter_facts()
        if self._marks.get(node.node_id) == seen:
            return
        self._marks[node.node_id] = seen
        quorum.engine.check_invariants()
        index = quorum.image.index
        if index > self._first_seen:
            self._first_seen = index
            self.check_image(node)
        mark = seen[1]
        if mark.leads:
            first = self._terms.setdefault(mark.term, node.node_id)
            if first != node.node_id:
                raise Violation(f"S7: nodes {first} and {node.node_id} both lead the quorum in term {mark.term}")

    def check_image(self, node: SimNode) -> None:
        """S7: check the image by its own invariants."""
        assert node.quorum is not None
        quorum = node.quorum.node
        seen = node.life, quorum.image.index
        if self._seen.get(node.node_id) != seen:
            self._seen[node.node_id] = seen
            quorum.check_invariants()

    def check_events(self, node_id: BrokerId, index: int, events: Sequence[MetadataEvent]) -> None:
        """S7: an entry causes the same events everywhere."""
        if self._applied.setdefault(index, events) != events:
            raise Violation(f"S7: node {node_id} applied something else at index {index}: {events}")
