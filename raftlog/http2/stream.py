"""A stream as its user sees it: messages out by `send`, messages in through a `StreamHandler`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ..ports import Part
from .frames import ErrorCode
from .streams import StreamState

if TYPE_CHECKING:
    from .protocol import Http2Connection


class StreamHandler(Protocol):
    """What the user of a stream is told, on the connection's loop. No call may block."""

    def on_message(self, stream: Http2Stream, message: memoryview) -> None:
        """One whole message, without its prefix; the bytes are the handler's to keep. A `RaftlogError` raised here
        resets the stream; a `RemoteProtocolError` closes the connection."""
        ...

    def on_ended(self, stream: Http2Stream) -> None:
        """The peer sends nothing more. Our side stays open until `end` or `reset`."""
        ...

    def on_closed(self, stream: Http2Stream, reason: str) -> None:
        """Nothing flows any more. Called once, and last; `reason` is "ended" when both sides ended on purpose."""
        ...


class Http2Stream:
    """One stream, of either side. All calls belong to the thread of the connection's loop; none blocks."""

    __slots__ = ("_connection", "_headers", "_path", "_state", "handler", "muted", "on_accepted", "peer_node", "status")

    def __init__(self, connection: Http2Connection, state: StreamState, path: str, headers: Mapping[str, str]) -> None:
        self._connection = connection
        self._state = state
        self._path = path
        self._headers = headers
        self.handler: StreamHandler | None = None
        self.muted = False
        """We reset it: messages that had arrived before are not handed on."""
        self.peer_node = -1
        """Id of the node that the peer's certificate proves it to be; -1 where nobody has asked for one."""
        self.status: int | None = None
        """Of the peer's response, on a stream that we opened, once it is known."""
        self.on_accepted: Callable[[Http2Stream], None] | None = None

    @property
    def path(self) -> str:
        """Of the request, query included."""
        return self._path

    @property
    def headers(self) -> Mapping[str, str]:
        """The request's header fields, names in lower case, pseudo fields left out."""
        return self._headers

    @property
    def connection(self) -> Http2Connection:
        return self._connection

    @property
    def closed(self) -> bool:
        """`on_closed` was called or is about to be: what is sent now is dropped."""
        return self._state.closed

    @property
    def queued_bytes(self) -> int:
        """Waiting in this stream's queue, for a window or for its turn. See also `Http2Connection.queued_bytes`."""
        return self._state.queued_bytes

    def send(self, parts: Sequence[Part]) -> None:
        """Queue one message made of these parts. Buffers must not change until they are sent, and are not copied
        unless small; file regions go by `sendfile`. Every region is released once, whatever happens.

        A message on a closed or ended stream is dropped. Raises `InvalidRequest` (`body_too_large`) for a message
        that is longer than the peer takes.
        """
        self._connection.send(self._state, parts)

    def end(self) -> None:
        """Nothing more will be sent; what is queued still is."""
        self._connection.end_stream(self._state)

    def reset(self, code: int = ErrorCode.CANCEL) -> None:
        """End both ways at once; what is queued is given up. `on_closed` follows."""
        self.muted = True
        self._connection.reset_stream(self._state, ErrorCode(code))

    def __str__(self) -> str:
        return f"{self._connection} stream {self._state.id} {self._path}"


StreamAcceptor: TypeAlias = Callable[[Http2Stream], StreamHandler]
"""Called with a stream that a peer opened; a `RaftlogError` refuses it, with its code's HTTP status. Messages may be
sent once it has returned: the response's headers go first."""
