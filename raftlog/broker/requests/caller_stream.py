"""One stream of an authenticated caller: it serves that caller only, and ends when its authentication does (S12).

The stream gets the error that ended it as an answer with correlation id -1, and then its end. If the peer has not taken
its earlier answers, the stream is reset instead: they hold records that must not follow. Requests in flight are
not answered; a caller whose credential is still valid opens another stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raftlog.broker.security.authentication.authentication import Authentication
from raftlog.broker.security.authentication.sessions import Sessions
from raftlog.errors import InvalidRequest, RaftlogError
from raftlog.http2 import Http2Stream
from raftlog.http2.connection import StreamHandler
from raftlog.wire import ErrorResponse, encode

FAREWELL_SECONDS = 1.0
"""Time that the peer has to end its side of the stream, in seconds."""


class CallerStream:
    """The stream of one caller: a `StreamHandler`."""

    def __init__(
        self,
        stream: Http2Stream,
        authentication: Authentication,
        sessions: Sessions,
        serve: Callable[[Callable[[], None]], tuple[StreamHandler, Callable[[], Any]]],
    ) -> None:
        """`serve` gets a function to call when the caller may no longer read what it reads; it returns the handler of
        the caller's requests, and a function to call at the end.

        Raises `Unauthenticated` if the authentication has ended already.
        """
        self._stream = stream
        self._caller = authentication.caller
        self._sessions = sessions
        self._session = sessions.open(authentication, self._end)
        self._requests, self._release = serve(self._revoked)
        self._open = True
        self.on_message = self._requests.on_message
        self.on_ended = self._requests.on_ended

    def on_closed(self, stream: Http2Stream, reason: str) -> None:
        self._open = False
        self._sessions.close(self._session)
        self._release()
        self._requests.on_closed(stream, reason)

    def _revoked(self) -> None:
        self._end(
            InvalidRequest("authorization_failed", f"{self._caller} may no longer read a topic that this stream reads")
        )

    def _end(self, error: RaftlogError) -> None:
        stream = self._stream
        if not self._open or stream.closed:
            return
        stream.handler = _OVER
        self.on_closed(stream, error.code)
        if stream.queued_bytes:
            stream.reset()
            return
        stream.send(encode(ErrorResponse(-1, error.code, error.detail)))
        stream.end()
        stream.connection.loop.call_later(FAREWELL_SECONDS, stream.reset)


class _Over:
    """The handler of a stream that this side has ended: nothing that still comes is looked at."""

    def on_message(self, stream: Http2Stream, message: memoryview) -> None:
        stream.reset()

    def on_ended(self, stream: Http2Stream) -> None:
        """Both sides have ended."""

    def on_closed(self, stream: Http2Stream, reason: str) -> None:
        """Everything that the stream held was released when this side ended it."""


_OVER = _Over()
