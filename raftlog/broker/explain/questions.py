"""Questions of one node to another, each on a connection of its own.

A fresh connection shows what a new one would meet: a refused port, a network that drops packets, a certificate that has
expired. Old connections may work long after new ones cannot be made. A question is rare and costs one handshake.

The stream's message is the caller (`requests/forwarded.py`) and the question; the answer is a message, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from raftlog.broker.requests.forwarded import head_of, split_caller
from raftlog.errors import InvalidRequest, RaftlogError, RemoteProtocolError
from raftlog.http2 import Http2Connection, Http2Stream, StreamAcceptor, connect
from raftlog.http2.tls import DialTls
from raftlog.model import BrokerId, Endpoint
from raftlog.security.principals import Caller

from .facts import Unanswered

ASK_SECONDS = 2.0
"""Time for connection, question and answer, in seconds."""
MAX_QUESTION_BYTES = 1024 * 1024

Reply: TypeAlias = Callable[[bytes], None]
"""Sends the answer; called once, perhaps later."""
AnswerQuestion: TypeAlias = Callable[[Caller | None, memoryview, Reply], None]
"""Answers a question in a caller's name; None: the asking node has no security."""


class QuestionAsker:
    """Asks other nodes. All calls are made on the broker's loop."""

    def __init__(
        self, dial: Callable[[BrokerId], Endpoint | None], tls: Callable[[BrokerId], DialTls] | None = None
    ) -> None:
        """`dial` returns the address of a node's data listener, `tls` the TLS settings for it (None: plain text)."""
        self._dial = dial
        self._tls = tls

    async def ask(self, node: BrokerId, path: str, question: bytes, caller: Caller | None) -> bytes | Unanswered:
        """Return a node's answer, or why there is none, within `ASK_SECONDS`. `caller` None: there is no security."""
        endpoint = self._dial(node)
        if endpoint is None:
            return Unanswered(node, "it never registered, so its address is unknown")
        connection: Http2Connection | None = None
        try:
            async with asyncio.timeout(ASK_SECONDS):
                tls = self._tls(node) if self._tls is not None else None
                connection = await connect(endpoint.host, endpoint.port, ssl=tls)
                waiting = _Waiting()
                stream = connection.open_stream(path, {}, waiting)
                stream.send([question] if caller is None else [head_of(caller), question])
                return await waiting.answer
        except TimeoutError:
            what = "no connection" if connection is None else "connected, but no answer"
            return Unanswered(node, f"{endpoint}: {what} within {ASK_SECONDS:.0f} s", reached=connection is not None)
        except RaftlogError as error:
            is_certificate = "certificate" in error.detail
            return Unanswered(node, error.detail, is_certificate, reached=connection is not None)
        except (OSError, ValueError) as error:  # an invalid advertised name
            return Unanswered(node, f"{endpoint}: {error}")
        finally:
            if connection is not None:
                connection.close("the question is answered")


class _Waiting:
    """The stream of one question."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def on_message(self, stream: Http2Stream, message: memoryview) -> None:
        if not self.answer.done():
            self.answer.set_result(bytes(message))

    def on_ended(self, stream: Http2Stream) -> None:
        stream.end()

    def on_closed(self, stream: Http2Stream, reason: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(RemoteProtocolError(f"it did not answer this question: {reason}"))


def question_acceptor(answer: AnswerQuestion, refused: Callable[[RaftlogError], bytes]) -> StreamAcceptor:
    """Return the acceptor of other nodes' questions. `refused` makes an answer of an error that `answer` raises."""
    return lambda stream: _Answering(answer, refused)


class _Answering:
    """A stream on which another node asks. It answers one question and ends."""

    def __init__(self, answer: AnswerQuestion, refused: Callable[[RaftlogError], bytes]) -> None:
        self._answer = answer
        self._refused = refused
        self._open = True

    def on_message(self, stream: Http2Stream, message: memoryview) -> None:
        def reply(content: bytes) -> None:
            if self._open:
                stream.send([content])
                stream.end()

        try:
            if message.nbytes > MAX_QUESTION_BYTES:
                raise InvalidRequest("invalid_request", f"a question of {message.nbytes} bytes")
            caller, question = split_caller(message)
            self._answer(caller, question, reply)
        except RaftlogError as error:
            reply(self._refused(error))

    def on_ended(self, stream: Http2Stream) -> None:
        """The asker sends its one message and waits; the answer ends the stream."""

    def on_closed(self, stream: Http2Stream, reason: str) -> None:
        self._open = False


def check_named(caller: Caller | None) -> Caller:
    """Return the caller of a question to a node with security. Raises `InvalidRequest` (`authorization_failed`) if the
    question names none."""
    if caller is None:
        raise InvalidRequest(
            "authorization_failed",
            "the question does not name its caller: give the node that asks the [security] settings of this one",
        )
    return caller
