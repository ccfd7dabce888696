"""What a peer said first: is it TLS, and for which name?

A TLS client begins with a ClientHello, in the clear, and in it is the server name that it wants (RFC 8446 section
4.1.2, RFC 6066 section 3). A listener that looks at it before the handshake can choose the loop on which the
connection is to live: afterwards it cannot be moved, because its encryption is bound to a transport. And it can tell
somebody who speaks plain HTTP/2 so, instead of sending a TLS alert.

Nothing is trusted here: a name chooses a thread, never a right. Bytes that are no hello have no name.
"""

from __future__ import annotations

from dataclasses import dataclass

RECORD_HEADER_BYTES = 5
MAX_FIRST_BYTES = RECORD_HEADER_BYTES + 2**14
"""RFC 8446 section 5.1: no record is longer. More is never looked at."""

_HANDSHAKE_RECORD = 22
_CLIENT_HELLO = 1
_SERVER_NAME = 0


@dataclass(frozen=True, slots=True)
class FirstBytes:
    """`server_name` is empty where there is none, or none that could be read."""

    is_tls: bool
    server_name: str = ""


def first_bytes(data: bytes) -> FirstBytes | None:
    """What these are, or None while there are too few of them to tell."""
    if not data:
        return None
    if data[0] != _HANDSHAKE_RECORD:
        return FirstBytes(is_tls=False)
    if len(data) < RECORD_HEADER_BYTES:
        return None
    end = RECORD_HEADER_BYTES + int.from_bytes(data[3:5])
    if len(data) < min(end, MAX_FIRST_BYTES):
        return None
    try:
        return FirstBytes(True, _server_name(_Reader(data[RECORD_HEADER_BYTES:end])))
    except (IndexError, UnicodeDecodeError):
        return FirstBytes(True)  # the handshake says what is wrong with it


class _Reader:
    """Fields of a TLS structure, one after the other. Raises `IndexError` beyond its end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._position

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise IndexError(count)
        self._position += count
        return self._data[self._position - count : self._position]

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width))

    def vector(self, width: int) -> _Reader:
        """A field that begins with its own length."""
        return _Reader(self.take(self.number(width)))


def _server_name(record: _Reader) -> str:
    if record.number(1) != _CLIENT_HELLO:
        return ""
    hello = record.vector(3)
    hello.take(2 + 32)  # version, random
    hello.vector(1)  # session id
    hello.vector(2)  # cipher suites
    hello.vector(1)  # compression methods
    if not hello.left:
        return ""
    extensions = hello.vector(2)
    while extensions.left:
        kind = extensions.number(2)
        content = extensions.vector(2)
        if kind == _SERVER_NAME:
            return _first_name(content.vector(2))
    return ""


def _first_name(names: _Reader) -> str:
    """There may be one name of each type, and the only type is the host name's, 0."""
    if names.number(1) != 0:
        return ""
    name = names.vector(2)
    return name.take(name.left).decode("ascii")
