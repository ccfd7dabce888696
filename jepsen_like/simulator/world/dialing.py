"""A simulated node's links to its peers: redialed after every loss, with a tick of the quorum after each event."""

from __future__ import annotations

import random
from collections.abc import Callable

from raftlog.model import BrokerId
from raftlog.ports import Link, LinkHandler

from .heap import EventHeap, Life
from .network import SimNetwork

QUORUM = "quorum"
"""The kind of link that carries the quorum's frames."""

REDIAL_SECONDS = (0.1, 0.4)


class Dialing:
    """Keeps links of one kind to peers, redialing after every loss, as the product's asyncio dialers do."""

    def __init__(
        self,
        own: BrokerId,
        life: Life,
        kind: str,
        handler: LinkHandler,
        *,
        heap: EventHeap,
        network: SimNetwork,
        rng: random.Random,
    ) -> None:
        self._own = own
        self._life = life
        self._kind = kind
        self._handler = handler
        self._heap = heap
        self._network = network
        self._rng = rng
        self._links: dict[int, Link | None] = {}
        """Peer → link, or None while there is none."""

    def connect(self, peer: BrokerId) -> None:
        if peer not in self._links:
            self._links[peer] = None
            self._dial(peer)

    def disconnect(self, peer: BrokerId) -> None:
        link = self._links.pop(peer, None)
        if link is not None:
            link.close()

    def _dial(self, peer: int) -> None:
        if peer in self._links and self._links[peer] is None:
            self._network.dial(self._own, peer, self._kind, self._life, self, lambda: self._again(peer))

    def _again(self, peer: int) -> None:
        delay = self._rng.uniform(*REDIAL_SECONDS)
        self._heap.schedule(delay, lambda: self._dial(peer), self._life)

    def on_opened(self, link: Link) -> None:
        if link.peer not in self._links or self._links[link.peer] is not None:
            link.close()
            return
        self._links[link.peer] = link
        self._handler.on_opened(link)

    def on_message(self, link: Link, message: memoryview) -> None:
        self._handler.on_message(link, message)

    def on_closed(self, link: Link) -> None:
        if self._links.get(link.peer) is link:
            self._links[link.peer] = None
            self._again(link.peer)
        self._handler.on_closed(link)


class TickingHandler:
    """Passes a link's events on, and ticks the quorum after each."""

    def __init__(self, handler: LinkHandler, tick_soon: Callable[[], None]) -> None:
        self._handler = handler
        self._tick_soon = tick_soon

    def on_opened(self, link: Link) -> None:
        self._handler.on_opened(link)
        self._tick_soon()

    def on_message(self, link: Link, message: memoryview) -> None:
        self._handler.on_message(link, message)
        self._tick_soon()

    def on_closed(self, link: Link) -> None:
        self._handler.on_closed(link)
        self._tick_soon()
