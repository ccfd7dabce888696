"""Whom a simulated node's quorum dials: the voters that its log names, and whoever dials it.

As `metadata/quorum_thread_dialing.py` in production, but for addresses: here a node's number is one. What is *not*
here: links that are lost and dialed again (`dialing.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

from metadata.quorum_configuration import Configuration
from raftlog.model import BrokerId, Endpoint

from .dialing import Dialing


class QuorumDialing:
    """One life's."""

    def __init__(self, own: BrokerId, initial: Iterable[BrokerId]) -> None:
        """`initial`: the voters that the folder was prepared with, dialed until the log says more."""
        self._own = own
        self._voters = set(initial) - {own}
        self._heard: set[BrokerId] = set()
        self._dialed: set[BrokerId] = set()
        self._dialing: Dialing | None = None

    def begin(self, dialing: Dialing) -> None:
        """Links may be made now."""
        self._dialing = dialing
        self._reconcile()

    def on_configuration(self, configuration: Configuration) -> None:
        """The log names these voters."""
        self._voters = set(configuration.node_ids) - {self._own}
        self._reconcile()

    def on_heard(self, peer: BrokerId, endpoint: Endpoint | None) -> None:
        """A peer dialed us."""
        self._heard.add(peer)
        self._reconcile()

    def on_gone(self, peer: BrokerId) -> None:
        """Its link to us is over."""
        self._heard.discard(peer)
        self._reconcile()

    def _reconcile(self) -> None:
        if self._dialing is None:
            return
        wanted = self._voters | self._heard
        for peer in sorted(self._dialed - wanted):
            self._dialing.disconnect(peer)
        for peer in sorted(wanted - self._dialed):
            self._dialing.connect(peer)
        self._dialed = wanted
