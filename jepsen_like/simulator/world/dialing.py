"""A simulated node's links to its peers: dialed again after every loss, the quorum ticked after each of their
events.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

from raftlog.model import BrokerId
from raftlog.ports import Link, LinkHandler

from .heap import EventHeap, Life
from .network import SimNetwork

QUORUM = "quorum"
"""The kind of link that carries the quorum's frames."""

REDIAL_SECONDS = (0.1, 0.4)


class DialingNode(Protocol):
    """What dialing needs of a node."""

    @property
    def node_id(self) -> BrokerId: ...
    @property
    def heap(self) -> EventHeap: ...
    @property
    def network(self) -> SimNetwork: ...
    @property
    def random(self) -> random.Random: ...


class Dialing:
    """Keeps links of one kind to peers, again after every loss: what the product's asyncio dialers do."""

    def __init__(self, node: DialingNode, life: Life, kind: str, handler: LinkHandler) -> None:
        self._node = node
        self._life = life
        self._kind = kind
        self._handler = handler
        self._links: dict[int, Link | None] = {}
        """Wanted peers; None while there is no link."""

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
            node = self._node
            node.network.dial(node.node_id, peer, self._kind, self._life, self, lambda: self._again(peer))

    def _again(self, peer: int) -> None:
        delay = self._node.random.uniform(*REDIAL_SECONDS)
        self._node.heap.schedule(delay, lambda: self._dial(peer), self._life)

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
    """Hands a link's events on, and has the quorum ticked after each."""

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
