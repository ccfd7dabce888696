"""The questions of one node to another about its facts (`questions.py`).

With security, the answering node decides again what the caller may describe (S12). A node of an older version does not
know the path; it then counts as reached.
"""

from __future__ import annotations

import msgspec

from metadata.view import ClusterView
from raftlog.broker.security.access.access import Access
from raftlog.errors import InvalidRequest, RaftlogError
from raftlog.http2 import StreamAcceptor
from raftlog.model import BrokerId, ProducerId, TopicId
from raftlog.security.acls import CLUSTER, Operation, Resource, ResourceType
from raftlog.security.principals import Caller

from .facts import NodeFacts, Unanswered
from .own_facts import FactsQuery, OwnFacts
from .questions import QuestionAsker, Reply, check_named, question_acceptor

EXPLAIN_PATH = "/raftlog.explain"
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

    def __init__(self, asker: QuestionAsker) -> None:
        self._asker = asker

    async def ask(self, node: BrokerId, query: FactsQuery, caller: Caller | None) -> NodeFacts | Unanswered:
        """Return a node's facts, or why there are none. `caller` None: there is no security."""
        found = await self._asker.ask(node, EXPLAIN_PATH, _encoder.encode(query), caller)
        if isinstance(found, Unanswered):
            return found
        try:
            answer = _answers.decode(found)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return Unanswered(node, f"malformed facts: {error}", reached=True)
        if answer.facts is None:
            return Unanswered(node, f"it refused: {answer.detail}", reached=True)
        return answer.facts


def facts_acceptor(own: OwnFacts, view: ClusterView, access: Access | None) -> StreamAcceptor:
    """Return the acceptor of other nodes' questions. `access` None: there is no security."""

    def answer(caller: Caller | None, question: memoryview, reply: Reply) -> None:
        try:
            query = _queries.decode(question)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise InvalidRequest("invalid_request", f"malformed question: {error}") from None
        if access is not None:
            _check(access, view, check_named(caller), query)
        reply(_encoder.encode(FactsAnswer(own.answer(query))))

    return question_acceptor(answer, _refused)


def _refused(error: RaftlogError) -> bytes:
    return _encoder.encode(FactsAnswer(None, error.code, error.detail))


def _check(access: Access, view: ClusterView, caller: Caller, query: FactsQuery) -> None:
    """Raise `InvalidRequest` (`authorization_failed`) unless the caller may describe what the query names."""
    topic = view.topic_by_id(TopicId(query.topic_id)) if query.topic_id else None
    if topic is not None:
        access.check(caller, Operation.DESCRIBE, Resource(ResourceType.TOPIC, topic.name), _ACTION)
    producer = view.transactions.producer_of(ProducerId(query.producer_id))
    if query.producer_id >= 0:
        named = None if producer is None else Resource(ResourceType.TRANSACTIONAL_ID, producer.transactional_id)
        access.check(caller, Operation.DESCRIBE, named or CLUSTER, _ACTION)
