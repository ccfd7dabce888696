"""The questions of one node to another about its facts, each on a connection of its own.

A fresh connection shows what a new one would meet: a refused port, a network that drops packets, a certificate that has
expired. Old connections may work long after new ones cannot be made. A question is rare and costs one handshake.

The stream's message is the caller (`requests/forwarded.py`) and the question; the answer is a message, too. With
security, the answering node decides again what the caller may describe (S12). A node of an older version does not know
the path; it then counts as reached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from metadata.view import ClusterView
from raftlog.broker.requests.forwarded import head_of, split_caller
from raftlog.broker.security.access import Access
from raftlog.errors import InvalidRequest, RaftlogError, RemoteProtocolError
from raftlog.http2 import Http2Connection, Http2Stream, StreamAcceptor, connect
from raftlog.http2.tls import DialTls
from raftlog.model import BrokerId, Endpoint, ProducerId, TopicId
from raftlog.security.acls import CLUSTER, Operation, Resource, ResourceType
from raftlog.security.principals import Caller

from .facts import NodeFacts, Unanswered
from .own_facts import FactsQuery, OwnFacts

EXPLAIN_PATH = "/raftlog.explain"
ASK_SECONDS = 2.0
"""Time for connection, question and answer, in seconds."""
MAX_QUESTION_BYTES = 1024 * 1024
_ACTION = "explain"


class FactsAnswer(msgspec.Struct, frozen=True):
    """The answer to a question: facts, or an error."""

    facts: NodeFacts | None = None
    error: str = ""
    detail: str = ""


_encoder = msgspec.msgpack.Encoder()
_queries = msgspec.msgpack.Decoder(FactsQuery)
_answers = msgspec.msgpack.Decoder(FactsAnswer)


class FactsAsker:
    """Asks other nodes. All calls are made on the broker's loop."""

    def __init__(
        self, dial: Callable[[BrokerId], Endpoint | None], tls: Callable[[BrokerId], DialTls] | None = None
    ) -> None:
        """`dial` returns the address of a node's data listener, `tls` the TLS settings for it (None: plain text)."""
        self._dial = dial
        self._tls = tls

    async def ask(self, node: BrokerId, query: FactsQuery, caller: Caller | None) -> NodeFacts | Unanswered:
        """Return a node's facts, or why there are none, within `ASK_SECONDS`. `caller` None: there is no security."""
        endpoint = self._dial(node)
        if endpoint is None:
            return Unanswered(node, "it never registered, so its address is unknown")
        connection: Http2Connection | None = None
        try:
            async with asyncio.timeout(ASK_SECONDS):
                tls = self._tls(node) if self._tls is not None else None
                connection = await connect(endpoint.host, endpoint.port, ssl=tls)
                answer = await self._exchange(connection, query, caller)
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
        if answer.facts is None:
            return Unanswered(node, f"it refused: {answer.detail}", reached=True)
        return answer.facts

    async def _exchange(self, connection: Http2Connection, query: FactsQuery, caller: Caller | None) -> FactsAnswer:
        waiting = _Waiting()
        stream = connection.open_stream(EXPLAIN_PATH, {}, waiting)
        question = _encoder.encode(query)
        stream.send([question] if caller is None else [head_of(caller), question])
        return await waiting.answer


class _Waiting:
    """The stream of one question."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[FactsAnswer] = asyncio.get_running_loop().create_future()

    def on_message(self, stream: Http2Stream, message: memoryview) -> None:
        if self.answer.done():
            return
        try:
            self.answer.set_result(_answers.decode(message))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            self.answer.set_exception(RemoteProtocolError(f"malformed facts: {error}"))

    def on_ended(self, stream: Http2Stream) -> None:
        stream.end()

    def on_closed(self, stream: Http2Stream, reason: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(RemoteProtocolError(f"it did not answer this question: {reason}"))


def facts_acceptor(own: OwnFacts, view: ClusterView, access: Access | None) -> StreamAcceptor:
    """Return the acceptor of other nodes' questions. `access` None: there is no security."""
    return lambda stream: _Answering(own, view, access)


class _Answering:
    """A stream on which another node asks. It answers one question and ends."""

    def __init__(self, own: OwnFacts, view: ClusterView, access: Access | None) -> None:
        self._own = own
        self._view = view
        self._access = access

    def on_message(self, stream: Http2Stream, message: memoryview) -> None:
        try:
            answer = FactsAnswer(self._facts(message))
        except RaftlogError as error:
            answer = FactsAnswer(None, error.code, error.detail)
        stream.send([_encoder.encode(answer)])
        stream.end()

    def on_ended(self, stream: Http2Stream) -> None:
        stream.end()

    def on_closed(self, stream: Http2Stream, reason: str) -> None:
        """Nothing is held for a stream."""

    def _facts(self, message: memoryview) -> NodeFacts:
        if message.nbytes > MAX_QUESTION_BYTES:
            raise InvalidRequest("invalid_request", f"a question of {message.nbytes} bytes")
        caller, question = split_caller(message)
        try:
            query = _queries.decode(question)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise InvalidRequest("invalid_request", f"malformed question: {error}") from None
        if self._access is not None:
            self._check(self._access, caller, query)
        return self._own.answer(query)

    def _check(self, access: Access, caller: Caller | None, query: FactsQuery) -> None:
        """Raise `InvalidRequest` (`authorization_failed`) unless the caller may describe what the query names."""
        if caller is None:
            raise InvalidRequest(
                "authorization_failed",
                "the question does not name its caller: give the node that asks the [security] settings of this one",
            )
        topic = self._view.topic_by_id(TopicId(query.topic_id)) if query.topic_id else None
        if topic is not None:
            access.check(caller, Operation.DESCRIBE, Resource(ResourceType.TOPIC, topic.name), _ACTION)
        producer = self._view.transactions.producer_of(ProducerId(query.producer_id))
        if query.producer_id >= 0:
            named = None if producer is None else Resource(ResourceType.TRANSACTIONAL_ID, producer.transactional_id)
            access.check(caller, Operation.DESCRIBE, named or CLUSTER, _ACTION)
