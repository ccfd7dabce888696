"""The simulated network of asyncio code: HTTP/2 connections to nodes, and API requests.

A connection is one link, and each message on it names its path. Messages arrive in order, and a connection is lost as a
whole, like a TCP connection. The node's end runs the product's own acceptors
(`raftlog/broker/requests/data_listener.py`). An API request has its own link: the request goes one way and the answer
the other, and a broken link is a lost answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from jepsen_like.simulator.world.network import SimLink, SimNetwork
from raftlog.client.cluster.any_node import NotSent
from raftlog.client.cluster.api import CONNECT_TIMEOUT, Answer, Call, HttpApi
from raftlog.errors import RaftlogError, RetriableError
from raftlog.model import Endpoint
from raftlog.ports import Link, LinkHandler, Part
from raftlog.security.secrets import Secret

from .loop import VirtualLoop

DATA = "data"
"""Kind of a link that is an HTTP/2 connection."""
API = "api"
"""Kind of a link that is one API request."""

Acceptors = Mapping[str, Callable[[Any], Any]]
"""Path → the acceptor that makes the handler of a new stream (`data_acceptors`)."""


class ApiRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request as sent over the link."""

    method: str
    path: str
    content_type: str
    body: bytes | None


class ApiAnswer(msgspec.Struct, frozen=True, array_like=True):
    """An answer as sent over the link."""

    status: int
    body: bytes


class Reach(NamedTuple):
    """The network of a process, and its place in it."""

    network: SimNetwork
    owner: int


REACHES: dict[VirtualLoop, Reach] = {}
"""The reaches of the running world's loops: `connect` and `exchange` replace module functions, which get no world as an
argument.
"""


def node_of(host: str) -> int:
    """Id of the node with this simulated host name."""
    return int(host.removeprefix("node-"))


class VirtualStream:
    """One path of a connection, at either end, with the interface of an `Http2Stream`."""

    def __init__(self, link: Callable[[], Link | None], path: str) -> None:
        self._link = link
        self.path = path
        self.peer_host = "simulated"
        self.status: int | None = None
        self.refusal: RaftlogError | None = None
        self.closed = False

    @property
    def connection(self) -> Link | None:
        """The end of the connection, by which its streams are counted."""
        return self._link()

    def send(self, parts: Sequence[Part]) -> None:
        link = self._link()
        if link is not None and not self.closed:
            link.send([_head(self.path), *parts])

    def end(self) -> None:
        self.closed = True

    def reset(self) -> None:
        self.closed = True


class VirtualConnection(LinkHandler):
    """The dialing end, with the interface of an `Http2Connection`."""

    queued_bytes = 0

    def __init__(self, on_closed: Callable[[Any, str], None] | None) -> None:
        self.closed = False
        self.on_goaway: Callable[..., None] | None = None
        self.on_drained: Callable[[], None] | None = None
        self._on_closed = on_closed
        self._reason = "connection lost"
        self._link: Link | None = None
        self._streams: dict[str, tuple[VirtualStream, Any]] = {}
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def open_stream(self, path: str, headers: Mapping[str, str], handler: Any) -> VirtualStream:
        stream = VirtualStream(lambda: self._link, path)
        self._streams[path] = stream, handler
        return stream

    def close(self, reason: str = "closed by us") -> None:
        self._reason = reason
        self.closed = True
        if self._link is not None:
            self._link.close()

    abort = close

    # --- LinkHandler -------------------------------------------------------------------------------------------------

    def on_opened(self, link: Link) -> None:
        self._link = link
        if self.ready.done():
            link.close()  # the dialer has given up
        else:
            self.ready.set_result(None)

    def on_message(self, link: Link, message: memoryview) -> None:
        path, content = _split(message)
        if not self.closed and path in self._streams:
            stream, handler = self._streams[path]
            handler.on_message(stream, content)

    def on_closed(self, link: Link) -> None:
        self.closed = True
        streams, self._streams = self._streams, {}
        for stream, handler in streams.values():
            stream.closed = True
            handler.on_closed(stream, self._reason)
        if self._on_closed is not None:
            self._on_closed(self, self._reason)

    def failed(self) -> None:
        """The node was not reached."""
        if not self.ready.done():
            self.ready.set_exception(RetriableError("connection_lost", "cannot connect"))


class DataListener(LinkHandler):
    """The node's end of HTTP/2 connections."""

    def __init__(self, acceptors: Acceptors) -> None:
        self._acceptors = acceptors
        self._streams: dict[Link, dict[str, tuple[VirtualStream, Any]]] = {}

    def on_opened(self, link: Link) -> None:
        self._streams[link] = {}

    def on_message(self, link: Link, message: memoryview) -> None:
        path, content = _split(message)
        of_link = self._streams.setdefault(link, {})
        if path not in of_link:
            stream = VirtualStream(lambda: link, path)
            of_link[path] = stream, self._acceptors[path](stream)
        stream, handler = of_link[path]
        handler.on_message(stream, content)

    def on_closed(self, link: Link) -> None:
        for stream, handler in self._streams.pop(link, {}).values():
            stream.closed = True
            handler.on_closed(stream, "connection lost")


async def connect(
    host: str,
    port: int,
    *,
    limits: object = None,
    ssl: object = None,
    on_closed: Callable[[Any, str], None] | None = None,
) -> VirtualConnection:
    """In place of `raftlog.http2.dialer.connect`. Raises `RetriableError` (`connection_lost`)."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    network, owner = REACHES[loop]
    connection = VirtualConnection(on_closed)
    network.dial(owner, node_of(host), DATA, loop.life, connection, connection.failed)
    await connection.ready
    return connection


class _Exchange(LinkHandler):
    """The client's end of one API request."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.sent = False
        self.answer: asyncio.Future[ApiAnswer] = asyncio.get_running_loop().create_future()
        self._link: Link | None = None

    def on_opened(self, link: Link) -> None:
        self._link = link
        self.sent = True
        link.send([self._request])

    def on_message(self, link: Link, message: memoryview) -> None:
        if not self.answer.done():
            self.answer.set_result(msgspec.msgpack.decode(message, type=ApiAnswer))

    def on_closed(self, link: Link) -> None:
        if not self.answer.done():
            self.answer.set_exception(RetriableError("connection_lost", "the connection broke"))

    def failed(self) -> None:
        if not self.answer.done():
            self.answer.set_exception(NotSent("cannot connect"))

    def over(self) -> None:
        """The client has given up."""
        self.answer.cancel()
        if self._link is not None:
            self._link.close()


async def exchange(api: HttpApi, node: Endpoint, call: Call, credential: Secret | None) -> Answer:
    """In place of `HttpApi._exchange`."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    network, owner = REACHES[loop]
    request = msgspec.msgpack.encode(ApiRequest(call.method, call.path, call.content_type, call.body))
    asking = _Exchange(request)
    network.dial(owner, node_of(node.host), API, loop.life, asking, asking.failed)
    began = loop.time()
    try:
        async with asyncio.timeout(call.timeout):
            answer = await asking.answer
    except TimeoutError:
        if not asking.sent and loop.time() - began >= CONNECT_TIMEOUT:
            raise NotSent(f"cannot connect to {node}: no answer in time") from None
        raise RetriableError("connection_lost", f"{node}: no answer within {call.timeout:g} s") from None
    finally:
        asking.over()
    return Answer(answer.status, answer.body)


class ApiListener(LinkHandler):
    """The node's end of API requests."""

    def __init__(self, answer: Callable[[ApiRequest, Callable[[ApiAnswer], None]], None]) -> None:
        self._answer = answer

    def on_opened(self, link: Link) -> None:
        """The request follows."""

    def on_message(self, link: Link, message: memoryview) -> None:
        request = msgspec.msgpack.decode(message, type=ApiRequest)
        self._answer(request, lambda answer: link.send([msgspec.msgpack.encode(answer)]))

    def on_closed(self, link: Link) -> None:
        """The client has the answer or has given up; the node continues to handle the request."""


def _head(path: str) -> bytes:
    name = path.encode()
    return bytes([len(name)]) + name


def _split(message: memoryview) -> tuple[str, memoryview]:
    length = message[0]
    return bytes(message[1 : 1 + length]).decode(), message[1 + length :]


__all__ = ["API", "DATA", "ApiAnswer", "ApiListener", "ApiRequest", "DataListener", "SimLink", "connect", "exchange"]
