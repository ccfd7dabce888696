"""What the sans-I/O core tells its shell. `stream` is the core's own record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from .stream_table import StreamState


@dataclass(slots=True)
class RequestReceived:
    """A peer opened a stream. The shell answers with `respond` or `refuse`."""

    stream: StreamState
    method: str
    path: str
    headers: dict[str, str]


@dataclass(slots=True)
class ResponseReceived:
    """The peer's answer to our request; 200 means that messages may flow."""

    stream: StreamState
    status: int
    headers: dict[str, str]


@dataclass(slots=True)
class MessageReceived:
    """One whole message. The bytes are the receiver's to keep."""

    stream: StreamState
    message: memoryview


@dataclass(slots=True)
class StreamEnded:
    """The peer sends nothing more on this stream."""

    stream: StreamState


@dataclass(slots=True)
class StreamClosed:
    """Nothing flows either way any more. Comes once for each stream, and last."""

    stream: StreamState
    reason: str


@dataclass(slots=True)
class PeerReady:
    """The peer's SETTINGS arrived: it speaks HTTP/2."""


@dataclass(slots=True)
class NotHttp2:
    """The peer's first bytes are no HTTP/2 preface; here is what there was of them, at most 256."""

    first_bytes: bytes


@dataclass(slots=True)
class GoAwayReceived:
    """The peer takes no new streams."""

    code: int
    reason: str


@dataclass(slots=True)
class ConnectionFailed:
    """The core gave up; what it wanted to say is in its output. Send that, then close."""

    code: int
    reason: str


Event: TypeAlias = (
    RequestReceived
    | ResponseReceived
    | MessageReceived
    | StreamEnded
    | StreamClosed
    | PeerReady
    | NotHttp2
    | GoAwayReceived
    | ConnectionFailed
)
