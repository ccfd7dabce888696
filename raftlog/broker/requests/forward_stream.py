"""The stream of another node's forwarded requests, each with its caller; this node decides again about each (S12).

Its certificate lets the node speak for callers. A message without a caller is the node's own, which sends none but the
heartbeats that it has collected from group members; or the node has no security yet, and forwards for everybody, which
a node accepts only while credentials are optional for it, too.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from raftlog.errors import InvalidRequest, RaftlogError, RetriableError
from raftlog.http2 import Http2Stream
from raftlog.security.principals import Caller
from raftlog.wire import ErrorResponse, GroupHeartbeatsRequest, decode_request, encode

from .forwarded import split_caller
from .guarded import GuardedRequests
from .request_stream import RequestStream

MAX_CALLERS = 1_000
"""The most callers whose requests are in progress or remembered on one stream."""


class ServedCaller(msgspec.Struct):
    """One caller on a stream, with the parts that serve it."""

    requests: RequestStream
    guard: GuardedRequests


class ForwardStream:
    """A `StreamHandler` for forwarded requests."""

    def __init__(
        self,
        own: RequestStream,
        serve: Callable[[Caller, Callable[[], None]], ServedCaller],
        unnamed: Caller | None = None,
    ) -> None:
        """`own` serves the node's own requests. `serve` returns what serves a caller; the function that it gets is to
        be called when the caller may no longer read what it reads. `unnamed`: the caller of requests that name none;
        None: they are refused.
        """
        self._own = own
        self._serve = serve
        self._unnamed = unnamed
        self._callers: dict[Caller, ServedCaller] = {}
        """Callers in the order of their last requests."""
        self.on_ended = own.on_ended

    def on_message(self, stream: Http2Stream, message: memoryview) -> None:
        try:
            caller, request = split_caller(message)
            if caller is None:
                self._hear(stream, request)
            else:
                self._served(caller).requests.on_message(stream, request)
        except RaftlogError as error:
            stream.send(encode(ErrorResponse(_number_of(message), error.code, error.detail)))

    def on_closed(self, stream: Http2Stream, reason: str) -> None:
        callers, self._callers = self._callers, {}
        for served in callers.values():
            served.guard.close()
            served.requests.on_closed(stream, reason)
        self._own.on_closed(stream, reason)

    def _hear(self, stream: Http2Stream, message: memoryview) -> None:
        request, _ = decode_request(message)
        if isinstance(request, GroupHeartbeatsRequest):
            self._own.on_message(stream, message)
        elif self._unnamed is not None:
            self._served(self._unnamed).requests.on_message(stream, message)
        else:
            raise InvalidRequest(
                "authorization_failed",
                "a forwarded request does not name its caller: give the node that forwards it the [security] settings "
                "of this one",
            )

    def _served(self, caller: Caller) -> ServedCaller:
        served = self._callers.pop(caller, None)
        if served is None:
            self._make_room()
            served = self._serve(caller, lambda: self._revoked(caller))
        self._callers[caller] = served
        return served

    def _make_room(self) -> None:
        """Forget the callers without a long poll that asked least recently. Raises `RetriableError`."""
        if len(self._callers) < MAX_CALLERS:
            return
        idle = next((caller for caller, served in self._callers.items() if not served.requests.is_fetching), None)
        if idle is None:
            raise RetriableError("overloaded", f"{MAX_CALLERS} callers have long polls on this stream; retry later")
        self._callers.pop(idle).guard.close()

    def _revoked(self, caller: Caller) -> None:
        served = self._callers.pop(caller, None)
        if served is not None:
            served.guard.close()
            served.requests.refuse_fetches(
                InvalidRequest("authorization_failed", f"{caller} may no longer read a topic that it reads")
            )


class OpenForwardStream:
    """A `StreamHandler` for forwarded requests at a node without security. It ignores callers, which nodes that have
    security already name: everybody may do everything here."""

    def __init__(self, requests: RequestStream) -> None:
        self._requests = requests
        self.on_ended = requests.on_ended
        self.on_closed = requests.on_closed

    def on_message(self, stream: Http2Stream, message: memoryview) -> None:
        try:
            _, request = split_caller(message)
        except InvalidRequest as error:
            stream.send(encode(ErrorResponse(-1, error.code, error.detail)))
            return
        self._requests.on_message(stream, request)


def _number_of(message: memoryview) -> int:
    """Return the correlation id of a request, so that its sender does not wait for an answer; -1 if it is illegible."""
    try:
        return decode_request(split_caller(message)[1])[0].correlation_id
    except RaftlogError:
        return -1
