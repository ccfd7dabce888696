"""The questions of one node to another about its ring, with the answers (`explain/questions.py`).

With security, the answering node decides again what the caller may describe (S12).
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from metadata.view import ClusterView
from raftlog.broker.explain.facts import Unanswered
from raftlog.broker.explain.questions import QuestionAsker, Reply, check_named, question_acceptor
from raftlog.broker.security.access.access import Access
from raftlog.errors import InvalidRequest, RaftlogError
from raftlog.http2 import StreamAcceptor
from raftlog.model import BrokerId, TopicId
from raftlog.security.acls import CLUSTER, Operation, Resource, ResourceType
from raftlog.security.principals import Caller

from .columns import GROUP_SERIES, NODE_SERIES, TOPIC_SERIES
from .rows import Span
from .sampler import PlotSampler, Read

PLOTS_PATH = "/raftlog.plots"
_ACTION = "plots"

Values: TypeAlias = list[list[float | None]]


class PlotQuery(msgspec.Struct, frozen=True, array_like=True, tag="plots.1"):
    """A question about one topic, one group, or, if neither is named, the node itself."""

    span: Span
    topic_id: bytes = b""
    group: str = ""

    @property
    def series(self) -> tuple[str, ...]:
        """Return the names of the columns that the answer has."""
        return TOPIC_SERIES if self.topic_id else GROUP_SERIES if self.group else NODE_SERIES


class PlotAnswer(msgspec.Struct, frozen=True):
    """The answer: a list of points for each series, or an error."""

    values: Values = []
    error: str = ""
    detail: str = ""


_encoder = msgspec.msgpack.Encoder()
_queries = msgspec.msgpack.Decoder(PlotQuery)
_answers = msgspec.msgpack.Decoder(PlotAnswer)


def read_own(sampler: PlotSampler, query: PlotQuery, done: Read) -> None:
    """Read what a query asks for from this node's ring."""
    if query.topic_id:
        sampler.read_topic(TopicId(query.topic_id), query.span, done)
    elif query.group:
        sampler.read_group(query.group, query.span, done)
    else:
        sampler.read_node(query.span, done)


class PlotAsker:
    """Asks other nodes. All calls are made on the broker's loop."""

    def __init__(self, asker: QuestionAsker) -> None:
        self._asker = asker

    async def ask(self, node: BrokerId, query: PlotQuery, caller: Caller | None) -> Values | Unanswered:
        """Return what a node's ring has, or why there is nothing. `caller` None: there is no security."""
        found = await self._asker.ask(node, PLOTS_PATH, _encoder.encode(query), caller)
        if isinstance(found, Unanswered):
            return found
        try:
            answer = _answers.decode(found)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return Unanswered(node, f"malformed plots: {error}", reached=True)
        if answer.error:
            return Unanswered(node, f"it refused: {answer.detail}", reached=True)
        if any(len(one) != query.span.points for one in answer.values):
            return Unanswered(node, "its plots have another number of points", reached=True)
        # A node of another version may have other series: those at the end are unknown to one of the two.
        values = answer.values[: len(query.series)]
        while len(values) < len(query.series):
            values.append([None] * query.span.points)
        return values


def plots_acceptor(sampler: PlotSampler, view: ClusterView, access: Access | None) -> StreamAcceptor:
    """Return the acceptor of other nodes' questions. `access` None: there is no security."""

    def answer(caller: Caller | None, question: memoryview, reply: Reply) -> None:
        try:
            query = _queries.decode(question)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise InvalidRequest("invalid_request", f"malformed question: {error}") from None
        if not query.span.is_within_bounds():
            raise InvalidRequest("invalid_request", f"a span of {query.span.points} points out of bounds")
        if access is not None:
            _check(access, view, check_named(caller), query)

        def read(values: Values | None, error: BaseException | None) -> None:
            if error is None:
                reply(_encoder.encode(PlotAnswer(values or [])))
            else:
                reply(_encoder.encode(PlotAnswer([], "internal_error", f"its ring cannot be read: {error}")))

        read_own(sampler, query, read)

    return question_acceptor(answer, _refused)


def _refused(error: RaftlogError) -> bytes:
    return _encoder.encode(PlotAnswer([], error.code, error.detail))


def _check(access: Access, view: ClusterView, caller: Caller, query: PlotQuery) -> None:
    """Raise `InvalidRequest` (`authorization_failed`) unless the caller may describe what the query names."""
    if query.group:
        resource = Resource(ResourceType.GROUP, query.group)
    elif query.topic_id:
        topic = view.topic_by_id(TopicId(query.topic_id))
        if topic is None:
            return  # There is nothing to read.
        resource = Resource(ResourceType.TOPIC, topic.name)
    else:
        resource = CLUSTER
    access.check(caller, Operation.DESCRIBE, resource, _ACTION)
