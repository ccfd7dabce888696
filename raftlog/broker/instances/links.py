"""The streams on which nodes ask the owners of HTTP consumers, one connection for each peer, dialed at first use.

A question that was not answered may have been carried out: a lease then ends by its time, and a range that was
delivered is confirmed or comes again. So every failure is `connection_lost`, and the next attempt asks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from raftlog.errors import RaftlogError, RetriableError, error_from_code
from raftlog.http2 import Http2Connection, Http2Stream, StreamAcceptor, connect
from raftlog.http2.tls import DialTls
from raftlog.model import BrokerId, Endpoint

from .messages import INSTANCES_PATH, Answer, Ask, decode_answer, decode_ask, encode

GRACE_SECONDS = 2.0
"""Time for connection, question and answer, beside the time that the owner may wait."""
MAX_WAITING = 4_096

Serve = Callable[[Ask], Awaitable[Answer]]


class OwnerLinks:
    """Asks the owners on other nodes. All calls are made on the broker's loop."""

    def __init__(
        self, dial: Callable[[BrokerId], Endpoint | None], tls: Callable[[BrokerId], DialTls] | None = None
    ) -> None:
        """`dial` returns the address of a node's data listener, `tls` the TLS settings for it (None: plain text)."""
        self._dial = dial
        self._tls = tls
        self._peers: dict[BrokerId, _Peer] = {}

    async def ask(self, node: BrokerId, question: Ask, wait_s: float) -> Answer:
        """Return a node's answer; its error is raised. Raises `RetriableError` (`connection_lost`) as well."""
        try:
            async with asyncio.timeout(wait_s + GRACE_SECONDS):
                answer = await (await self._peer(node)).ask(question)
        except TimeoutError:
            raise RetriableError("connection_lost", f"node {node} did not answer in time") from None
        if answer.error:
            raise error_from_code(answer.error, answer.detail)
        return answer

    def close(self) -> None:
        """Drop all connections. Waiting questions end with an error."""
        peers, self._peers = self._peers, {}
        for peer in peers.values():
            peer.close()

    async def _peer(self, node: BrokerId) -> _Peer:
        endpoint = self._dial(node)
        if endpoint is None:
            raise RetriableError("connection_lost", f"node {node} is not registered")
        known = self._peers.get(node)
        if known is None or known.endpoint != endpoint or known.lost:
            if known is not None:
                known.close()
            known = self._peers[node] = _Peer(endpoint, self._tls(node) if self._tls is not None else None)
        await asyncio.shield(known.connecting)
        return known


class _Peer:
    """One peer's connection, from dialing to its loss. It is not used again after that."""

    def __init__(self, endpoint: Endpoint, tls: DialTls | None) -> None:
        self.endpoint = endpoint
        self.lost = False
        self._tls = tls
        self._connection: Http2Connection | None = None
        self._stream: Http2Stream | None = None
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._next = 0
        self.connecting = asyncio.get_running_loop().create_task(self._connect())
        # A failure is seen by those who wait; there may be none.
        self.connecting.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _connect(self) -> None:
        try:
            self._connection = await connect(self.endpoint.host, self.endpoint.port, ssl=self._tls)
            self._stream = self._connection.open_stream(INSTANCES_PATH, {}, self)
        except RaftlogError as error:
            raise RetriableError("connection_lost", error.detail) from None
        except (OSError, ValueError) as error:  # an invalid advertised name
            raise RetriableError("connection_lost", f"{self.endpoint}: {error}") from None
        finally:
            self.lost = self.lost or self._stream is None

    async def ask(self, question: Ask) -> Answer:
        """Send a question and return its answer."""
        if self._stream is None or self.lost:
            raise RetriableError("connection_lost", f"the connection to {self.endpoint} is lost")
        if len(self._waiting) >= MAX_WAITING:
            raise RetriableError("overloaded", f"too many questions to {self.endpoint} wait for their answers")
        self._next += 1
        number = self._next
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answered
        try:
            self._stream.send([encode(msgspec.structs.replace(question, number=number))])
            return await answered
        finally:
            del self._waiting[number]

    def close(self) -> None:
        """Close the connection."""
        self.connecting.cancel()
        self._lose("closed by this node")
        if self._connection is not None:
            self._connection.close()

    # --- The stream's handler ---

    def on_message(self, stream: Http2Stream, message: memoryview) -> None:
        answer = decode_answer(message)
        waiting = self._waiting.get(answer.number)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def on_ended(self, stream: Http2Stream) -> None:
        stream.end()

    def on_closed(self, stream: Http2Stream, reason: str) -> None:
        self._lose(reason)
        if self._connection is not None:
            self._connection.close()

    def _lose(self, reason: str) -> None:
        self.lost = True
        for waiting in self._waiting.values():
            if not waiting.done():
                told = f"the connection to {self.endpoint} broke: {reason}"
                waiting.set_exception(RetriableError("connection_lost", told))


def instances_acceptor(serve: Serve) -> StreamAcceptor:
    """Return the acceptor of other nodes' questions, which `serve` answers."""
    return lambda stream: _Answering(serve)


class _Answering:
    """A stream on which another node asks."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._tasks: set[asyncio.Task[None]] = set()

    def on_message(self, stream: Http2Stream, message: memoryview) -> None:
        question = decode_ask(message)
        if len(self._tasks) >= MAX_WAITING:
            stream.send([encode(Answer(question.number, "overloaded", "too many questions wait for their answers"))])
            return
        task = asyncio.get_running_loop().create_task(self._answer(stream, question))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def on_ended(self, stream: Http2Stream) -> None:
        stream.end()

    def on_closed(self, stream: Http2Stream, reason: str) -> None:
        for task in self._tasks:
            task.cancel()

    async def _answer(self, stream: Http2Stream, question: Ask) -> None:
        try:
            answer = msgspec.structs.replace(await self._serve(question), number=question.number)
        except RaftlogError as error:
            answer = Answer(question.number, error.code, error.detail)
        if not stream.closed:
            stream.send([encode(answer)])
