"""One request and its answer in plain HTTP: their contents are bytes, not messages.

The content of the request waits in the core until it is read, at most a window of it, so a slow reader holds
back its peer alone. The content of the answer is queued; `wants_room` tells when more may be queued.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ..ports import Buffer
from .core import ENDED, ConnectionCore
from .events import ContentReceived, ContentSent, RequestReceived, StreamClosed, StreamEnded
from .frames import ErrorCode
from .transport import ConnectionShell

HIGH_CONTENT_BYTES = 256 * 1024
"""Queued bytes of an answer from which on its user should wait for room."""


class ExchangeHandler(Protocol):
    """Receives an exchange's events on the connection's loop. No call may block."""

    def on_content(self) -> None:
        """Handle the arrival of content after none was left (`Http2Exchange.read`)."""
        ...

    def on_ended(self) -> None:
        """Handle the end of the request's content, some of which may not be read yet."""
        ...

    def on_room(self) -> None:
        """Handle that little of the answer is queued any more, after `wants_room`."""
        ...

    def on_closed(self, reason: str) -> None:
        """Handle the end of both sides. Called once, and last."""
        ...


class Http2Exchange:
    """A request that a peer sent, and its answer.

    All calls belong to the thread of the connection's loop; none blocks.
    """

    __slots__ = ("_core", "_shell", "_state", "fields", "handler", "is_broken", "method", "path")

    def __init__(self, core: ConnectionCore, shell: ConnectionShell, event: RequestReceived) -> None:
        self._core = core
        self._shell = shell
        self._state = event.stream
        self.method = event.method
        self.path = event.path
        """Path of the request, including the query, as it came."""
        self.fields = event.fields
        """The header fields as they came, with pseudo fields and `authorization`."""
        self.handler: ExchangeHandler | None = None
        self.is_broken = False
        """Whether it ended before both sides had ended on purpose."""

    @property
    def closed(self) -> bool:
        """Whether both sides have ended: what is sent from now on is dropped."""
        return self._state.closed

    @property
    def request_ended(self) -> bool:
        """Whether all of the request's content has arrived."""
        return self._state.remote_ended

    @property
    def has_content(self) -> bool:
        """Whether content waits to be read."""
        return bool(self._state.early)

    @property
    def queued_bytes(self) -> int:
        """Bytes of the answer that wait for a window or their turn."""
        return self._state.queued_bytes

    def read(self) -> bytes:
        """Return the content that has arrived; the peer may send as much again."""
        content = self._core.read_content(self._state)
        self._shell.flush()
        return content

    def answer(self, status: int, fields: Iterable[tuple[str, str]]) -> None:
        """Begin the answer; a status below 200 is an interim answer, after which another one follows."""
        self._core.answer(self._state, status, fields)
        self._shell.flush()

    def send(self, content: Buffer) -> None:
        """Queue content of the answer. The buffer must not change until it is sent."""
        self._core.send_content(self._state, content)
        self._shell.flush()

    def wants_room(self) -> bool:
        """Return whether the user should wait until `on_room`, because much is queued."""
        self._state.waits_for_room = not self._state.closed and self._state.queued_bytes > HIGH_CONTENT_BYTES
        return self._state.waits_for_room

    def end(self, *, takes_rest: bool = False) -> None:
        """End the answer once it is sent. The rest of the request's content is discarded; the peer may send more of
        it if this side `takes_rest`."""
        self._core.end_exchange(self._state, takes_rest=takes_rest)
        self._shell.flush()

    def reset(self, code: int = ErrorCode.CANCEL) -> None:
        """End both sides at once; what is queued is dropped. `on_closed` follows."""
        self._core.reset(self._state, ErrorCode(code), "reset by us")
        self._shell.flush()

    def on_event(self, event: ContentReceived | ContentSent | StreamEnded | StreamClosed) -> None:
        """Pass an event to the handler; for the connection."""
        if isinstance(event, StreamClosed):
            self.is_broken = event.reason != ENDED
            handler, self.handler = self.handler, None
            if handler is not None:
                handler.on_closed(event.reason)
        elif self.handler is None:
            return
        elif isinstance(event, ContentReceived):
            self.handler.on_content()
        elif isinstance(event, ContentSent):
            self.handler.on_room()
        else:
            self.handler.on_ended()
