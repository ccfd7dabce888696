"""Requests of strangers: with any credential or none, to any path of a node, and what the node told them.

HTTP requests are written by hand, so that nothing of the client library stands between a stranger and the node.
Streams use the product's transport, with the stranger's certificate and header.

| outcome | meaning |
|---|---|
| `refused` | 401, 403, a code of those, or a TLS handshake that the node ended |
| `nothing` | a success with nothing in it, such as an empty list |
| `told` | anything else that the node said: the request was not refused |
| `unavailable` | the node was starting, stopping, overloaded or without a quorum, and says so to everybody |
| `silent` | no answer in time, or no connection |
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import msgspec

from raftlog.errors import RaftlogError, RemoteProtocolError
from raftlog.http2 import Http2Connection, Http2Stream, connect
from raftlog.http2.tls import DialTls
from raftlog.model import Endpoint
from raftlog.wire import decode_response

TIMEOUT_SECONDS = 3.0
SHOWN = 300
"""Characters of an answer that are kept."""
HANDSHAKES = ("TLS", "certificate")
"""Words of the transport about a handshake that the node ended."""

REFUSED = frozenset({"unauthenticated", "authorization_failed", "cluster_authorization_failed"})
UNAVAILABLE = frozenset(
    {
        "quorum_unavailable",
        "shutting_down",
        "overloaded",
        "throttled",
        "slow_request",
        "identity_provider_unavailable",
    }
)

Outcome: TypeAlias = Literal["refused", "nothing", "told", "unavailable", "silent"]


class Heard(msgspec.Struct, frozen=True):
    """The answer to one request."""

    outcome: Outcome
    text: str
    """The status and the answer's beginning, for people."""


async def ask_api(
    api: Endpoint,
    tls: ssl.SSLContext,
    method: str,
    path: str,
    headers: Mapping[str, str],
    body: bytes = b"",
) -> Heard:
    """Send a request to the API of a node and return what it told. Never raises for what a node or network does."""
    fields = {"Host": str(api), "Connection": "close", **headers}
    if body:
        fields = {"Content-Type": "application/json", **fields, "Content-Length": str(len(body))}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            reader, writer = await asyncio.open_connection(api.host, api.port, ssl=tls)
            try:
                writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
                answer = await reader.read()
            finally:
                writer.transport.abort()
    except ssl.SSLError as error:
        return Heard("refused", f"TLS: {error.reason or error}"[:SHOWN])
    except (OSError, TimeoutError) as error:
        return Heard("silent", f"{error!r}"[:SHOWN])
    return heard_of(answer)


def heard_of(answer: bytes) -> Heard:
    """Return the outcome of an HTTP answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split(None, 2)
    if len(words) < 2 or not words[1].isdigit():
        return Heard("silent", "no answer" if not answer else f"{answer[:SHOWN]!r}")
    status = int(words[1])
    if b"chunked" in head.lower():
        body = _joined(body)
    text = f"{status} {body[:SHOWN].decode(errors='replace')}"
    try:
        document = msgspec.json.decode(body) if body else None
    except msgspec.MsgspecError:
        return Heard("told", text)
    if status in (401, 403):
        return Heard("refused", text)
    if status < 300:
        return Heard("nothing" if _is_empty(document) else "told", text)
    members = document if isinstance(document, dict) else {}
    # The REST Proxy API has numbers instead of codes.
    is_unavailable = members.get("code") in UNAVAILABLE or (status in (429, 503) and "error_code" in members)
    return Heard("unavailable" if is_unavailable else "told", text)


def _joined(body: bytes) -> bytes:
    """Return the content of a chunked body."""
    parts = []
    while body:
        size, _, rest = body.partition(b"\r\n")
        try:
            length = int(size.split(b";")[0], 16)
        except ValueError:
            break
        parts.append(rest[:length])
        body = rest[length + 2 :]
    return b"".join(parts)


def _is_empty(document: Any) -> bool:
    """Return whether a document has no content but counts of zero and empty lists."""
    if isinstance(document, dict) and "data" in document:
        return not document["data"]
    return document == [] or (isinstance(document, dict) and not any(document.values()))


# --- Streams ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Listening:
    """The handler of a stranger's stream: keeps its first answer, or its end."""

    heard: asyncio.Future[Heard] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def on_message(self, stream: Http2Stream, message: memoryview) -> None:
        self._tell(outcome_of(message))

    def on_ended(self, stream: Http2Stream) -> None:
        stream.end()

    def on_closed(self, stream: Http2Stream, reason: str) -> None:
        if stream.refusal is not None:
            self._tell(_of_error(stream.refusal))
        elif stream.status is not None and stream.status != 200:
            self._tell(Heard("refused" if stream.status in (401, 403) else "told", f"{stream.status} {reason[:SHOWN]}"))
        else:
            self._tell(Heard("silent", reason[:SHOWN]))

    def _tell(self, heard: Heard) -> None:
        if not self.heard.done():
            self.heard.set_result(heard)


async def ask_stream(
    data: Endpoint, tls: ssl.SSLContext, path: str, headers: Mapping[str, str], message: bytes
) -> Heard:
    """Open a stream, send one message and return what the node told. Never raises for what a node or network does."""
    listening = _Listening()
    connection: Http2Connection | None = None
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            connection = await connect(data.host, data.port, ssl=DialTls.of(tls))
            connection.open_stream(path, headers, listening).send([message])
            return await listening.heard
    except TimeoutError:
        return Heard("silent", "no answer in time")
    except RaftlogError as error:
        ended = any(word in str(error) for word in HANDSHAKES)
        return Heard("refused" if ended else "silent", str(error)[:SHOWN])
    finally:
        if connection is not None:
            connection.close()


def outcome_of(message: memoryview) -> Heard:
    """Return the outcome of one message of a node. A partial refusal counts by its most generous part."""
    try:
        response, body = decode_response(message)
    except RemoteProtocolError:
        return Heard("told", f"{bytes(message[:SHOWN])!r}")
    code = getattr(response, "error", "")
    codes = [code] if code else [str(one) for one in getattr(response, "errors", ())]
    for name in ("partitions", "slots"):
        codes += [one.error for one in getattr(response, name, ())]
    text = f"{type(response).__name__} {sorted(set(codes))} with {body.nbytes} bytes"
    if body.nbytes or not codes:
        return Heard("told", text)
    if set(codes) <= REFUSED:
        return Heard("refused", text)
    return Heard("unavailable" if set(codes) <= REFUSED | UNAVAILABLE else "told", text)


def _of_error(error: RaftlogError) -> Heard:
    text = f"{error.status} {error}"[:SHOWN]
    if error.code in REFUSED:
        return Heard("refused", text)
    return Heard("unavailable" if error.code in UNAVAILABLE else "told", text)


class HeldStream:
    """A stream of long polls that stays open until the node ends it: a `StreamHandler`."""

    def __init__(self, request: bytes, on_heard: Any, on_over: Any) -> None:
        """`on_heard` gets each answer, `on_over` is called when the stream has ended."""
        self._request = request
        self._on_heard = on_heard
        self._on_over = on_over
        self._connection: Http2Connection | None = None

    async def open(self, data: Endpoint, tls: ssl.SSLContext, path: str, headers: Mapping[str, str]) -> bool:
        """Open the stream and return whether that was possible."""
        with contextlib.suppress(RaftlogError, TimeoutError):
            async with asyncio.timeout(TIMEOUT_SECONDS):
                self._connection = await connect(data.host, data.port, ssl=DialTls.of(tls))
                self._connection.open_stream(path, headers, self).send([self._request])
                return True
        return False

    def on_message(self, stream: Http2Stream, message: memoryview) -> None:
        heard = outcome_of(message)
        self._on_heard(heard)
        if heard.outcome != "refused":
            asyncio.get_running_loop().call_later(0.2, stream.send, [self._request])

    def on_ended(self, stream: Http2Stream) -> None:
        stream.end()

    def on_closed(self, stream: Http2Stream, reason: str) -> None:
        self._on_over(reason)
        self.close()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
