"""Heartbeats that a node forwards to the coordinator, over the simulated network: one link per peer, dialed on demand.

This stands for the product's forwarder (`raftlog/broker/requests/forwarding.py`), with its messages and its timeout.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from jepsen_like.simulator.world.heap import EventHeap, Life
from jepsen_like.simulator.world.network import SimNetwork
from raftlog.broker.requests.forwarding import HEARTBEAT_SECONDS
from raftlog.errors import RetriableError
from raftlog.model import BrokerId
from raftlog.ports import Answer, Link, LinkHandler
from raftlog.wire import (
    GroupHeartbeatsRequest,
    GroupHeartbeatsResponse,
    Request,
    Response,
    decode_request,
    decode_response,
    encode,
)

FORWARD = "forward"
"""The kind of link that carries forwarded heartbeats."""


class HeartbeatLinks(LinkHandler):
    """The dialing side, for one life of a node."""

    def __init__(self, own: BrokerId, life: Life, heap: EventHeap, network: SimNetwork) -> None:
        self._own = own
        self._life = life
        self._heap = heap
        self._network = network
        self._links: dict[int, Link] = {}
        self._unsent: dict[int, list[bytes]] = {}
        """Messages by peer, while the peer is dialed."""
        self._waiting: dict[int, tuple[int, Answer[GroupHeartbeatsResponse]]] = {}
        """Peer and callback by correlation id."""
        self._next_id = 0

    def heartbeats(
        self, peer: BrokerId, request: GroupHeartbeatsRequest, answer: Answer[GroupHeartbeatsResponse]
    ) -> None:
        number, self._next_id = self._next_id, self._next_id + 1
        self._waiting[number] = (peer, answer)
        self._heap.schedule(HEARTBEAT_SECONDS, lambda: self._lose(number, "no answer in time"), self._life)
        message = message_of(msgspec.structs.replace(request, correlation_id=number))
        link, unsent = self._links.get(peer), self._unsent.get(peer)
        if link is not None:
            link.send([message])
        elif unsent is not None:
            unsent.append(message)
        else:
            self._unsent[peer] = [message]
            self._network.dial(
                self._own, peer, FORWARD, self._life, self, lambda: self._lose_all(peer, "cannot connect")
            )

    def on_opened(self, link: Link) -> None:
        self._links[link.peer] = link
        for message in self._unsent.pop(link.peer, ()):
            link.send([message])

    def on_message(self, link: Link, message: memoryview) -> None:
        response, _ = decode_response(message)
        assert isinstance(response, GroupHeartbeatsResponse)
        _, answer = self._waiting.pop(response.correlation_id, (link.peer, None))
        if answer is not None:
            answer(response)

    def on_closed(self, link: Link) -> None:
        if self._links.get(link.peer) is link:
            del self._links[link.peer]
        self._lose_all(link.peer, "the connection broke")

    def _lose_all(self, peer: int, why: str) -> None:
        self._unsent.pop(peer, None)
        for number in [number for number, (of, _) in self._waiting.items() if of == peer]:
            self._lose(number, why)

    def _lose(self, number: int, why: str) -> None:
        _, answer = self._waiting.pop(number, (0, None))
        if answer is not None:
            answer(RetriableError("connection_lost", why))


class CoordinatorListener(LinkHandler):
    """The accepting side: the coordinator's answers."""

    def __init__(self, hear: Callable[[GroupHeartbeatsRequest], GroupHeartbeatsResponse]) -> None:
        self._hear = hear

    def on_opened(self, link: Link) -> None:
        """Requests follow."""

    def on_message(self, link: Link, message: memoryview) -> None:
        request, _ = decode_request(message)
        assert isinstance(request, GroupHeartbeatsRequest)
        link.send([message_of(self._hear(request))])

    def on_closed(self, link: Link) -> None:
        """Nothing is kept for a link."""


def message_of(head: Request | Response) -> bytes:
    """Return the message without a body as one piece."""
    (packed,) = encode(head)
    assert isinstance(packed, bytes)
    return packed
