"""Splitting of a stream of concatenated JSON objects, whatever stands between them or how they arrive in pieces.

Only brackets outside of strings are looked at: whether an object is valid JSON, its decoder tells.

Pure.
"""

from __future__ import annotations

import re

from raftlog.errors import InvalidRequest

_BLANKS = b" \t\r\n"
_TO_BRACKET = re.compile(rb'[^{}\[\]"]*+(?:"(?:[^"\\]|\\.)*+"[^{}\[\]"]*+)*+([{}\[\]])', re.DOTALL)
"""Possessive: text that is not complete yet is scanned once and never tried in another way."""
_OPENING = b"{["


class ObjectSplitter:
    """Cuts a stream into its objects.

    Invariant: `_buffer` begins with the first object that is not complete, without blanks before it; `_scanned` is the
    place behind its last bracket seen, at depth `_depth`.
    """

    def __init__(self, most_bytes: int) -> None:
        """`most_bytes`: the maximum size of an object."""
        self._most = most_bytes
        self.fault: InvalidRequest | None = None
        """The reason why nothing behind the objects that were returned can be read."""
        self._buffer = b""
        self._scanned = 0
        self._depth = 0

    @property
    def waiting(self) -> int:
        """Bytes of the object that is not complete."""
        return len(self._buffer)

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the objects that are complete with this piece. Afterwards `fault` is set if the text behind them is
        not an object (`invalid_json`), or one that is too large (`batch_too_large`)."""
        buffer = self._buffer + piece if self._buffer else piece.lstrip(_BLANKS)
        found: list[bytes] = []
        start, scanned, depth = 0, self._scanned, self._depth
        while start < len(buffer):
            if not depth and buffer[start] != _OPENING[0]:
                shown = buffer[start : start + 32].decode(errors="replace")
                self.fault = InvalidRequest("invalid_json", f"a record is a JSON object, not {shown!r}")
                break
            match = _TO_BRACKET.match(buffer, scanned)
            if match is None:
                break
            scanned = match.end()
            depth += 1 if match[1] in _OPENING else -1
            if not depth:
                found.append(buffer[start:scanned])
                start = scanned + _blanks_at(buffer, scanned)
                scanned = start
        self._buffer, self._scanned, self._depth = buffer[start:], scanned - start, depth
        if len(self._buffer) > self._most:
            self.fault = InvalidRequest("batch_too_large", f"a record has more than {self._most} bytes of JSON")
        return found

    def end(self) -> None:
        """Set `fault` if the stream ends inside an object."""
        if self._buffer and self.fault is None:
            self.fault = InvalidRequest("invalid_json", "the body ends inside a record")


def _blanks_at(buffer: bytes, position: int) -> int:
    """Return the number of blanks at a position."""
    count = 0
    while position + count < len(buffer) and buffer[position + count] in _BLANKS:
        count += 1
    return count
