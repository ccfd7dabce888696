"""Events from the sans-I/O core to its shell; `stream` is the core's own state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ..security.secrets import Secret
from .stream_table import StreamState


@dataclass(slots=True)
class RequestReceived:
    """A peer opened a stream. The shell answers with `respond` or `refuse`."""

    stream: StreamState
    method: str
    path: str
    headers: dict[str, str]
    """The header fields but `authorization`."""
    authorization: Secret | None = None
    fields: Sequence[tuple[bytes, bytes]] = field(default=(), repr=False)
    """All header fields as they came, `authorization` and pseudo fields included."""


@dataclass(slots=True)
class ResponseReceived:
    """The peer's answer to our request; 200 means that messages may flow."""

    stream: StreamState
    status: int
    headers: dict[str, str]


@dataclass(slots=True)
class MessageReceived:
    """One whole message; the receiver may keep the bytes."""

    stream: StreamState
    message: memoryview


@dataclass(slots=True)
class ContentReceived:
    """There is content of an exchange to read; told once until it is read."""

    stream: StreamState


@dataclass(slots=True)
class ContentSent:
    """Little of an exchange's content is queued any more: its user may send more."""

    stream: StreamState


@dataclass(slots=True)
class ProbeAnswered:
    """The peer has received everything that was sent before this probe."""

    number: int


@dataclass(slots=True)
class StreamEnded:
    """The peer sends nothing more on this stream."""

    stream: StreamState


@dataclass(slots=True)
class StreamClosed:
    """Both sides of the stream have ended. The last event of each stream, exactly once."""

    stream: StreamState
    reason: str


@dataclass(slots=True)
class PeerReady:
    """The peer's SETTINGS arrived: it speaks HTTP/2."""


@dataclass(slots=True)
class NotHttp2:
    """The peer's first bytes are no HTTP/2 preface; at most 256 of them are attached."""

    first_bytes: bytes


@dataclass(slots=True)
class GoAwayReceived:
    """The peer accepts no new streams."""

    code: int
    reason: str


@dataclass(slots=True)
class ConnectionFailed:
    """The core has failed. The shell sends the remaining output, then closes."""

    code: int
    reason: str


Event: TypeAlias = (
    RequestReceived
    | ResponseReceived
    | MessageReceived
    | ContentReceived
    | ContentSent
    | ProbeAnswered
    | StreamEnded
    | StreamClosed
    | PeerReady
    | NotHttp2
    | GoAwayReceived
    | ConnectionFailed
)
