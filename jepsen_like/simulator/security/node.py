"""A simulated node of the quorum with the view from which its broker would authenticate and authorize."""

from __future__ import annotations

from collections.abc import Sequence

from jepsen_like.simulator.quorum.node import QuorumSimNode
from metadata.records.events import MetadataEvent
from metadata.view import ClusterView
from raftlog.version import FEATURE_LEVEL


class SecuritySimNode(QuorumSimNode):
    """See `QuorumSimNode`."""

    feature_level = FEATURE_LEVEL
    view: ClusterView
    """That of the running process."""

    def start(self) -> None:
        self.view = ClusterView()
        super().start()

    def _on_events(self, index: int, events: Sequence[MetadataEvent]) -> None:
        self.view.on_events(index, events)
        super()._on_events(index, events)
