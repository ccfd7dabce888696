"""A peer's first bytes: whether they are TLS, and for which server name.

A TLS client begins with a ClientHello in the clear, which contains the server name that it wants (RFC 8446 section
4.1.2, RFC 6066 section 3). A listener that reads it before the handshake can choose the loop on which the connection
will live; afterwards the connection cannot move, because its encryption is bound to a transport. The listener can also
answer a plain HTTP/2 peer properly instead of sending a TLS alert.

Nothing here is trusted: a name chooses a thread, never a right. Bytes that are no ClientHello have no name.
"""

from __future__ import annotations

from dataclasses import dataclass

RECORD_HEADER_BYTES = 5
MAX_FIRST_BYTES = RECORD_HEADER_BYTES + 2**14
"""Limit of bytes to look at: no TLS record is longer (RFC 8446 section 5.1)."""

_HANDSHAKE_RECORD = 22
_CLIENT_HELLO = 1
_SERVER_NAME = 0


@dataclass(frozen=True, slots=True)
class FirstBytes:
    """The kind of a peer's first bytes.

    `server_name` is empty if there is none, or none that could be read.
    """

    is_tls: bool
    server_name: str = ""


def first_bytes(data: bytes) -> FirstBytes | None:
    """Classify the first bytes; return None while there are too few of them."""
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
        return FirstBytes(True)  # the handshake reports what is wrong with it


class _Reader:
    """Reads the fields of a TLS structure in order. Raises `IndexError` beyond its end."""

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
        """Read a field that begins with its own length."""
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
    """Return the host name; it is the only type of name (0), and there may be one of each type."""
    if names.number(1) != 0:
        return ""
    name = names.vector(2)
    return name.take(name.left).decode("ascii")
