"""Connections between simulated nodes: ordered, at most once, lost as a whole.

A `SimLink` is one end of a connection, as the product's `Link` port requires. Messages take a random time and never
overtake one another on one connection. A directed cut holds messages back (TCP would retransmit) until the cut heals or
the silence exceeds `dead_after`; then both ends see the connection close, and messages in flight are lost. A process
that dies resets its connections; the other end sees it after one latency, or after `dead_after` if the machine lost
power or the way back is cut. Dialing through a cut, or to a node that is down, fails after a while. Connections of one
kind may stall alone, while all others between the two nodes continue.

Bytes are carried, not objects: parts are joined when they are sent, so later changes of a buffer have no effect.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from raftlog.ports import Buffer, FileRegion, LinkHandler, Part

from .heap import EventHeap, Life

CLIENT = 100
"""Clients are node 100: they can be cut off like any other."""

Way: TypeAlias = tuple[int, int] | tuple[int, int, str]
"""(From, to): all connections; (from, to, kind): those of one kind."""


@dataclass(slots=True)
class NetworkShape:
    """The behaviour of the network, drawn for each seed."""

    latency_min: float = 0.0001
    latency_max: float = 0.002
    slow_probability: float = 0.01
    slow_max: float = 0.05
    dead_after: float = 1.5


@dataclass(slots=True)
class Listener:
    """The handler that accepts connections of one kind at one node."""

    life: Life
    handler: LinkHandler


class SimLink:
    """One end of a connection."""

    def __init__(self, network: SimNetwork, owner: int, peer: int, kind: str, life: Life, handler: LinkHandler) -> None:
        self._network = network
        self.owner = owner
        self._peer = peer
        self.kind = kind
        self.life = life
        self.handler = handler
        self.other: SimLink
        self.open = True
        self.arrival = 0.0
        """Arrival time of the last message sent from here; later messages arrive later."""
        self.held: list[bytes] = []
        """Messages sent into a cut, in order."""
        self.carried = 0
        """Number of messages sent: the first is a handshake."""

    @property
    def peer(self) -> int:
        return self._peer

    def send(self, parts: Sequence[Part]) -> None:
        message = bytes_of(parts[0]) if len(parts) == 1 else b"".join(map(_buffer_of, parts))
        if self.open and self.life.alive:
            self._network.carry(self, message)

    def close(self) -> None:
        self._network.close(self)


def bytes_of(part: Part) -> bytes:
    """Return a part as bytes; a file region is read and released."""
    return bytes(_buffer_of(part))


def _buffer_of(part: Part) -> Buffer:
    if not isinstance(part, FileRegion):
        return part
    try:
        return part.file.pread(part.length, part.position)
    finally:
        part.release()


class SimNetwork:
    """All connections of one simulated world."""

    def __init__(
        self, heap: EventHeap, rng: random.Random, shape: NetworkShape, sent: Callable[[int, int, bytes], None]
    ) -> None:
        """`sent` is called with the sender, the receiver and the content of every message."""
        self._heap = heap
        self._sent = sent
        self._rng = rng
        self.shape = shape
        self.cuts: set[tuple[int, int]] = set()
        """Directed: (from, to) carries nothing."""
        self.stalled: set[tuple[int, int, str]] = set()
        """(From, to, kind): only connections of this kind carry nothing in this direction."""
        self.refusing: set[int] = set()
        """Nodes without a descriptor for another connection; existing ones stay."""
        self._listeners: dict[tuple[int, str], Listener] = {}
        self._links: list[SimLink] = []
        self.messages = 0

    # --- For nodes ---

    def listen(self, node: int, kind: str, life: Life, handler: LinkHandler) -> None:
        self._listeners[(node, kind)] = Listener(life, handler)

    def dial(
        self, node: int, peer: int, kind: str, life: Life, handler: LinkHandler, failed: Callable[[], None]
    ) -> None:
        """Connect; afterwards `handler.on_opened` is called at both ends, or `failed` here."""

        def arrive() -> None:
            listener = self._listeners.get((peer, kind))
            cut = self._is_cut(node, peer, kind) or self._is_cut(peer, node, kind)
            refused = node in self.refusing or peer in self.refusing
            if listener is None or not listener.life.alive or cut or refused:
                self._heap.schedule(self.shape.dead_after if cut else self._latency(), failed, life)
                return
            here = SimLink(self, node, peer, kind, life, handler)
            there = SimLink(self, peer, node, kind, listener.life, listener.handler)
            here.other, there.other = there, here
            self._links += [here, there]
            there.handler.on_opened(there)
            self._heap.schedule(self._latency(), lambda: here.handler.on_opened(here) if here.open else failed(), life)

        self._heap.schedule(self._latency(), arrive)

    # --- For links ---

    def carry(self, link: SimLink, message: bytes) -> None:
        self.messages += 1
        self._sent(link.owner, link.peer, message)
        if self._is_cut(link.owner, link.peer, link.kind):
            if not link.held:
                self._heap.schedule(self.shape.dead_after, lambda: self._give_up(link))
            link.held.append(message)
            return
        if link.held:
            link.held.append(message)
            return
        self._deliver_later(link, message)

    def close(self, link: SimLink) -> None:
        """Close the connection for the link's owner; both handlers are notified, each at its own time."""
        if link.open:
            self._end(link, 0.0)
            self._end(link.other, self._latency())

    # --- For nemeses and the cluster ---

    def heal(self) -> None:
        """End all cuts, and deliver the messages that they held."""
        self.cuts.clear()
        self.stalled.clear()
        self.refusing.clear()
        self.flow()

    def cut(self, way: Way) -> None:
        """Stop carrying messages this way."""
        if len(way) == 2:
            self.cuts.add(way)
        else:
            self.stalled.add(way)

    def mend(self, way: Way) -> None:
        """End a `cut`; the messages that it held wait for `flow`."""
        if len(way) == 2:
            self.cuts.discard(way)
        else:
            self.stalled.discard(way)

    def flow(self) -> None:
        """Deliver the messages held by cuts that have ended."""
        for link in list(self._links):
            if link.held and not self._is_cut(link.owner, link.peer, link.kind):
                held, link.held = link.held, []
                for message in held:
                    self._deliver_later(link, message)

    def node_died(self, node: int, *, silently: bool) -> None:
        """Drop every connection of a dead node; peers notice at once, or after a silence if the power failed."""
        for kind in sorted(kind for owner, kind in self._listeners if owner == node):
            del self._listeners[(node, kind)]
        for link in [link for link in self._links if link.owner == node]:
            link.open = False
            unheard = silently or self._is_cut(node, link.peer, link.kind)
            self._end(link.other, self.shape.dead_after if unheard else self._latency())
        self._links = [link for link in self._links if link.owner != node]

    def reset_some(self, probability: float) -> int:
        """Close random connections, with the messages in flight."""
        chosen = [link for link in self._links if link.open and self._rng.random() < probability]
        for link in chosen:
            self.close(link)
        return len(chosen)

    # --- Inside ---

    def _is_cut(self, sender: int, receiver: int, kind: str) -> bool:
        if not self.cuts and not self.stalled:
            return False
        return (sender, receiver) in self.cuts or (sender, receiver, kind) in self.stalled

    def _latency(self) -> float:
        shape, draw = self.shape, self._rng.random
        if draw() < shape.slow_probability:
            return shape.latency_max + (shape.slow_max - shape.latency_max) * draw()
        return shape.latency_min + (shape.latency_max - shape.latency_min) * draw()

    def _deliver_later(self, link: SimLink, message: bytes) -> None:
        link.carried += 1
        arrival = self._heap.now + self._latency()
        if arrival < link.arrival:
            arrival = link.arrival
        link.arrival = arrival
        self._deliver_at(link, message, arrival)

    def _deliver_at(self, link: SimLink, message: bytes, arrival: float) -> None:
        other = link.other

        def deliver() -> None:
            if other.open:
                other.handler.on_message(other, memoryview(message))

        self._heap.schedule(arrival - self._heap.now, deliver, other.life)

    def _give_up(self, link: SimLink) -> None:
        if link.open and link.held and self._is_cut(link.owner, link.peer, link.kind):
            self._end(link, 0.0)
            self._end(link.other, 0.0)

    def _end(self, link: SimLink, delay: float) -> None:
        def closed() -> None:
            if link.open:
                link.open = False
                link.held.clear()
                if link in self._links:
                    self._links.remove(link)
                link.handler.on_closed(link)

        self._heap.schedule(delay, closed, link.life)
