"""The HTTP/2 streams of native clients and forwarding brokers, with messages of `raftlog/wire.py`.

`/v1/produce` and `/v1/fetch` answer only for this broker's own partitions: a native client knows the leaders, and gets
`not_leader` if it is mistaken. A fetch may belong to a session (`raftlog/wire.py`); a stream has at most one.
`/raftlog.forward` accepts every kind of request from other brokers. Each stream has many requests in flight. Produce
requests are passed to the partitions in the order of arrival; answers are sent as they complete.

A message that cannot be decoded is answered with the reason (correlation id -1), and the stream continues: messages are
delimited by their length, so the next one is intact. The requests in flight on a stream are bounded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from partitions.fetch.session import FetchSession
from partitions.manager import Cancellable
from raftlog.config import MIB
from raftlog.errors import InvalidRequest, RaftlogError
from raftlog.http2 import Http2Stream, StreamAcceptor
from raftlog.ports import Part
from raftlog.wire import (
    FETCH_PATH,
    PRODUCE_PATH,
    DeleteRecordsRequest,
    ErrorResponse,
    FetchRequest,
    FetchResponse,
    GroupHeartbeatsRequest,
    GroupHeartbeatsResponse,
    OffsetsRequest,
    ProduceRequest,
    ProduceResponse,
    Request,
    Response,
    SessionFetchRequest,
    SessionFetchResponse,
    decode_request,
    encode,
    split_body,
)

from .fetch import release
from .forwarding import FORWARD_PATH
from .local import LocalRequests

MAX_REQUESTS_IN_FLIGHT = 4096
"""Maximum number of requests in flight on one stream; more are refused as `overloaded`."""
MAX_BYTES_IN_FLIGHT = 64 * MIB
"""Maximum bytes of unanswered produce requests on one stream."""


HearMembers: TypeAlias = Callable[[GroupHeartbeatsRequest], GroupHeartbeatsResponse]


def nobody_hears(request: GroupHeartbeatsRequest) -> GroupHeartbeatsResponse:
    """Answer heartbeats for a broker that never coordinates groups."""
    return GroupHeartbeatsResponse(request.correlation_id, ["not_coordinator"] * len(request.members))


def data_acceptors(
    local: LocalRequests, accepting: Callable[[], bool], hear: HearMembers = nobody_hears
) -> dict[str, StreamAcceptor]:
    """Return the acceptors by path.

    `accepting` tells whether this broker accepts requests (not while it stops). `hear` handles heartbeats of consumer
    groups, as their coordinator.
    """

    def acceptor(*kinds: type[Request]) -> StreamAcceptor:
        return lambda stream: RequestStream(stream, local, kinds, accepting, hear)

    return {
        PRODUCE_PATH: acceptor(ProduceRequest),
        FETCH_PATH: acceptor(FetchRequest, SessionFetchRequest, OffsetsRequest),
        FORWARD_PATH: acceptor(
            ProduceRequest, FetchRequest, OffsetsRequest, DeleteRecordsRequest, GroupHeartbeatsRequest
        ),
    }


class RequestStream:
    """One stream of requests: a `StreamHandler`."""

    def __init__(
        self,
        stream: Http2Stream,
        local: LocalRequests,
        kinds: tuple[type[Request], ...],
        accepting: Callable[[], bool],
        hear: HearMembers = nobody_hears,
    ) -> None:
        self._stream = stream
        self._local = local
        self._kinds = kinds
        self._accepting = accepting
        self._hear = hear
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._fetches: dict[int, Cancellable] = {}
        self._next_fetch = 0
        self._session: FetchSession | None = None
        self._ended = False

    def on_message(self, stream: Http2Stream, message: memoryview) -> None:
        try:
            request, body = decode_request(message)
        except InvalidRequest as error:
            stream.send(encode(ErrorResponse(-1, error.code, error.detail)))
            return
        refusal = self._refusal(request, body.nbytes)
        if refusal is not None:
            stream.send(encode(refusal))
        elif isinstance(request, ProduceRequest):
            self._produce(request, body)
        elif isinstance(request, FetchRequest):
            self._fetch(request)
        elif isinstance(request, SessionFetchRequest):
            self._fetch_in_session(request)
        elif isinstance(request, GroupHeartbeatsRequest):
            stream.send(encode(self._hear(request)))
        elif isinstance(request, DeleteRecordsRequest):
            self._begin(0)
            self._local.delete_records(request, lambda response: self._answer(response, 0))
        else:
            self._begin(0)
            self._local.offsets(request, lambda response: self._answer(response, 0))

    def on_ended(self, stream: Http2Stream) -> None:
        self._ended = True
        self._end_when_answered()

    def on_closed(self, stream: Http2Stream, reason: str) -> None:
        fetches, self._fetches = self._fetches, {}
        for fetch in fetches.values():
            fetch.cancel()
        self._local.close_session(self._session)

    def _refusal(self, request: Request, size: int) -> ErrorResponse | None:
        number = request.correlation_id
        if not isinstance(request, self._kinds):
            taken = " and ".join(kind.__name__ for kind in self._kinds)
            return ErrorResponse(number, "invalid_request", f"{self._stream.path} accepts only {taken}")
        if not self._accepting():
            return ErrorResponse(number, "shutting_down", "this broker is stopping")
        full = self._in_flight_bytes + size > MAX_BYTES_IN_FLIGHT and self._in_flight
        if self._in_flight >= MAX_REQUESTS_IN_FLIGHT or full:
            return ErrorResponse(number, "overloaded", "too many requests are in flight on this stream")
        return None

    def _produce(self, request: ProduceRequest, body: memoryview) -> None:
        batches = split_body(body, [partition.length for partition in request.partitions])
        size = body.nbytes
        self._begin(size)

        def done(response: ProduceResponse) -> None:
            if request.acks == 0:
                self._finish(size)
            else:
                self._answer(response, size)

        self._local.produce(request, batches, done)

    def _fetch(self, request: FetchRequest) -> None:
        self._begin(0)
        number = self._next_fetch
        self._next_fetch += 1
        answered = False

        def done(response: FetchResponse, parts: list[Part]) -> None:
            nonlocal answered
            answered = True
            self._fetches.pop(number, None)
            if self._stream.closed:
                release(parts)
            self._answer(response, 0, parts)

        waiting = self._local.fetch(request, done)
        if not answered:
            self._fetches[number] = waiting

    def _fetch_in_session(self, request: SessionFetchRequest) -> None:
        self._begin(0)

        def done(response: SessionFetchResponse, parts: list[Part]) -> None:
            if self._stream.closed:
                release(parts)
            self._answer(response, 0, parts)

        try:
            self._session = self._local.fetch_session(self._session, request, done)
        except RaftlogError as error:
            self._answer(ErrorResponse(request.correlation_id, error.code, error.detail), 0)

    def _begin(self, size: int) -> None:
        self._in_flight += 1
        self._in_flight_bytes += size

    def _answer(self, response: Response, size: int, parts: list[Part] | None = None) -> None:
        if not self._stream.closed:
            self._stream.send(encode(response, parts or ()))
        self._finish(size)

    def _finish(self, size: int) -> None:
        self._in_flight -= 1
        self._in_flight_bytes -= size
        self._end_when_answered()

    def _end_when_answered(self) -> None:
        if self._ended and not self._in_flight and not self._stream.closed:
            self._stream.end()
