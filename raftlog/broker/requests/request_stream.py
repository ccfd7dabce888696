"""One stream of requests: messages of `raftlog/wire.py`, carried out by this broker.

A fetch may belong to a session (`raftlog/wire.py`); a stream has at most one. Many requests are in flight, within
bounds. Produce requests are passed to the partitions in the order of arrival; answers are sent as they complete.

A message that cannot be decoded is answered with the reason (correlation id -1), and the stream continues: messages are
delimited by their length, so the next one is intact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeAlias

from partitions.fetch.session import FetchSession
from partitions.manager import Cancellable
from raftlog.errors import InvalidRequest, RaftlogError
from raftlog.http2 import Http2Stream
from raftlog.ports import Answer, Part, part_length, release_regions
from raftlog.wire import (
    DeleteRecordsRequest,
    ErrorResponse,
    FetchRequest,
    FetchResponse,
    GroupHeartbeatsRequest,
    GroupHeartbeatsResponse,
    GroupRequest,
    GroupResponse,
    ProduceRequest,
    ProduceResponse,
    Request,
    Response,
    SessionFetchRequest,
    SessionFetchResponse,
    TransactionRequest,
    TransactionResponse,
    decode_request,
    encode,
    split_body,
)

from .in_flight import InFlight
from .local import OwnRequests
from .pace import Pace
from .request_counts import RequestCounts, Timed

AskTransactions: TypeAlias = Callable[[TransactionRequest, Answer[TransactionResponse]], None]


class GroupRequests(Protocol):
    """The part of `Groups` that is needed here."""

    def ask(self, request: GroupRequest, client_host: str, answer: Answer[GroupResponse]) -> None: ...
    def hear(self, request: GroupHeartbeatsRequest) -> GroupHeartbeatsResponse: ...


class GroupRequestsAs(GroupRequests, Protocol):
    """The same for principals, to which belongs what their requests make."""

    def ask(
        self, request: GroupRequest, client_host: str, answer: Answer[GroupResponse], principal: str = ""
    ) -> None: ...


class AskTransactionsAs(Protocol):
    """`AskTransactions` for principals, likewise."""

    def __call__(
        self, request: TransactionRequest, answer: Answer[TransactionResponse], principal: str = ""
    ) -> None: ...


class StreamRequests(OwnRequests, Protocol):
    """Requests to this broker's own partitions on one stream: `LocalRequests`, or `GuardedRequests` of one caller."""

    def fetch_session(
        self,
        current: FetchSession | None,
        request: SessionFetchRequest,
        done: Callable[[SessionFetchResponse, list[Part]], None],
    ) -> FetchSession: ...

    def close_session(self, session: FetchSession | None) -> None: ...


class RequestStream:
    """One stream of requests: a `StreamHandler`."""

    def __init__(
        self,
        stream: Http2Stream,
        local: StreamRequests,
        groups: GroupRequests,
        ask: AskTransactions,
        kinds: tuple[type[Request], ...],
        accepting: Callable[[], bool],
        in_flight: InFlight,
        pace: Pace | None = None,
        counts: RequestCounts | None = None,
    ) -> None:
        """`kinds`: the requests that the stream's path serves. `accepting` returns whether this broker accepts requests
        (not while it stops). `pace`: what is charged to the caller; None: nothing is. `counts`: those of the node.
        """
        self._stream = stream
        self._local = local
        self._groups = groups
        self._kinds = kinds
        self._accepting = accepting
        self._ask = ask
        self._in_flight = in_flight
        self._pace = pace
        self._counts = counts or RequestCounts()
        self._fetches: dict[int, tuple[int, Cancellable, Timed]] = {}
        """The long polls in progress, each with the correlation id of its request."""
        self._next_fetch = 0
        self._session: FetchSession | None = None

    @property
    def is_fetching(self) -> bool:
        """Whether a long poll outside of sessions is in progress."""
        return bool(self._fetches)

    def on_message(self, stream: Http2Stream, message: memoryview) -> None:
        try:
            request, body = decode_request(message)
        except InvalidRequest as error:
            stream.send(encode(ErrorResponse(-1, error.code, error.detail)))
            return
        size = message.nbytes if isinstance(request, GroupRequest | TransactionRequest) else body.nbytes
        timed = self._counts.begin(request, message.nbytes)
        refusal = self._refusal(request, size)
        if refusal is not None:
            self._counts.end(timed, refusal, 0)
            stream.send(encode(refusal))
        elif isinstance(request, ProduceRequest):
            self._produce(request, body, timed)
        elif isinstance(request, FetchRequest):
            self._fetch(request, timed)
        elif isinstance(request, SessionFetchRequest):
            self._fetch_in_session(request, timed)
        elif isinstance(request, GroupRequest | TransactionRequest):
            self._change(request, size, timed)
        elif isinstance(request, GroupHeartbeatsRequest):
            heard = self._groups.hear(request)
            self._counts.end(timed, heard, 0)
            stream.send(encode(heard))
        elif isinstance(request, DeleteRecordsRequest):
            self._in_flight.begin(0)
            self._local.delete_records(request, lambda response: self._answer(response, timed))
        else:
            self._in_flight.begin(0)
            self._local.offsets(request, lambda response: self._answer(response, timed))

    def on_ended(self, stream: Http2Stream) -> None:
        self._in_flight.end()

    def on_closed(self, stream: Http2Stream, reason: str) -> None:
        for _, fetch, _ in self._taken_fetches():
            fetch.cancel()
        self._local.close_session(self._session)
        self._in_flight.close()

    def refuse_fetches(self, error: RaftlogError) -> None:
        """Answer every long poll in progress with an error, and with no record."""
        for number, fetch, timed in self._taken_fetches():
            fetch.cancel()
            self._in_flight.end_poll()
            self._tell(number, timed, error)

    def _taken_fetches(self) -> list[tuple[int, Cancellable, Timed]]:
        fetches, self._fetches = self._fetches, {}
        return list(fetches.values())

    def _refusal(self, request: Request, size: int) -> ErrorResponse | None:
        number = request.correlation_id
        if not isinstance(request, self._kinds):
            taken = " and ".join(kind.__name__ for kind in self._kinds)
            return ErrorResponse(number, "invalid_request", f"{self._stream.path} accepts only {taken}")
        if not self._accepting():
            return ErrorResponse(number, "shutting_down", "this broker is stopping")
        if not self._in_flight.has_room(size):
            return ErrorResponse(number, "overloaded", "too many requests are in flight on this stream")
        if isinstance(request, FetchRequest | SessionFetchRequest) and not self._in_flight.begin_poll():
            return ErrorResponse(number, "overloaded", "too many fetches of this connection or caller are in flight")
        return None

    def _produce(self, request: ProduceRequest, body: memoryview, timed: Timed) -> None:
        batches = split_body(body, [partition.length for partition in request.partitions])
        timed.size = body.nbytes
        self._in_flight.begin(timed.size)

        def done(response: ProduceResponse) -> None:
            if request.acks == 0:
                self._counts.end(timed, None, 0)
                self._in_flight.finish(timed.size)
            else:
                self._answer(response, timed)

        self._local.produce(request, batches, done)

    def _fetch(self, request: FetchRequest, timed: Timed) -> None:
        self._in_flight.begin(0)
        number = self._next_fetch
        self._next_fetch += 1
        answered = False

        def done(response: FetchResponse, parts: list[Part]) -> None:
            nonlocal answered
            answered = True
            self._fetches.pop(number, None)
            self._answer_poll(response, parts, timed)

        waiting = self._local.fetch(request, done)
        if not answered:
            self._fetches[number] = request.correlation_id, waiting, timed

    def _fetch_in_session(self, request: SessionFetchRequest, timed: Timed) -> None:
        self._in_flight.begin(0)
        try:
            self._session = self._local.fetch_session(
                self._session, request, lambda response, parts: self._answer_poll(response, parts, timed)
            )
        except RaftlogError as error:
            self._in_flight.end_poll()
            self._tell(request.correlation_id, timed, error)

    def _change(self, request: GroupRequest | TransactionRequest, size: int, timed: Timed) -> None:
        timed.size = size
        self._in_flight.begin(size)
        if self._pace is not None:
            self._pace.changes()
        done = partial(self._tell, request.correlation_id, timed)
        if isinstance(request, GroupRequest):
            self._groups.ask(request, self._stream.peer_host, done)
        else:
            self._ask(request, done)

    def _tell(self, number: int, timed: Timed, outcome: Response | RaftlogError) -> None:
        if isinstance(outcome, RaftlogError):
            outcome = ErrorResponse(number, outcome.code, outcome.detail)
        self._answer(outcome, timed)

    def _answer_poll(self, response: Response, parts: Sequence[Part], timed: Timed) -> None:
        self._in_flight.end_poll()
        self._answer(response, timed, parts)

    def _answer(self, response: Response, timed: Timed, parts: Sequence[Part] = ()) -> None:
        self._counts.end(timed, response, sum(map(part_length, parts)) if parts else 0)
        try:
            if self._stream.closed:
                release_regions(parts)
            else:
                told = response if self._pace is None else self._pace.answered(response, parts)
                self._stream.send(encode(told, parts))
        except InvalidRequest as error:  # the response is longer than the peer accepts
            self._stream.send(encode(ErrorResponse(response.correlation_id, error.code, error.detail)))
        self._in_flight.finish(timed.size)
