"""Parsing of a file's bytes into records, piece by piece, so that no file is ever whole in memory.

Three formats:

* `lines`: one record per line. LF or CRLF ends a line and is not part of it. With a separator, the text before it is
  the key.
* `ndjson`: one JSON object per line.
* `json`: JSON objects one after the other, or in one array; line breaks have no meaning.

This module is pure.
"""

from __future__ import annotations

import re
from typing import TypeAlias

from raftlog.config import MAX_BATCH_DECOMPRESSED_BYTES
from raftlog.errors import InvalidRequest

from .columns import Columns, Decode, KeyedObjects, RecordObjects, SeparatedKeys, plain_values

MAX_RECORD_BYTES = 2 * MAX_BATCH_DECOMPRESSED_BYTES
"""Maximum bytes of input without the end of a record. No batch could hold more, even as JSON."""


class LineInput:
    """A parser of one record per line."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._rest: list[bytes] = []
        """The beginning of an incomplete line."""
        self._rest_bytes = 0
        self._line = 1

    def feed(self, piece: bytes) -> Columns:
        end = piece.rfind(b"\n")
        if end < 0:
            self._rest.append(piece)
            self._rest_bytes += len(piece)
            return Columns() if self._rest_bytes <= MAX_RECORD_BYTES else Columns(fault=_too_long("line", self._line))
        text = b"".join((*self._rest, piece[: end + 1]))
        self._keep(piece[end + 1 :])
        lines = (text.replace(b"\r\n", b"\n") if b"\r" in text else text).split(b"\n")
        del lines[-1]
        first, self._line = self._line, self._line + len(lines)
        return self._decode(lines, first)

    def end(self) -> Columns:
        rest = b"".join(self._rest)
        self._keep(b"")
        return self._decode([rest], self._line) if rest else Columns()

    def _keep(self, rest: bytes) -> None:
        self._rest = [rest] if rest else []
        self._rest_bytes = len(rest)


# The bytes that matter between objects, in an object, and in a string.
_OUTSIDE = re.compile(rb"[^ \t\r\n]")
_IN_OBJECT = re.compile(rb'["{}\[\]]')
_IN_STRING = re.compile(rb'"|\\.', re.DOTALL)


class JsonInput:
    """A parser of JSON objects, one after the other or in an array. It finds the end of each; `decode` validates the
    JSON."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._text = b""
        """The text from the beginning of the incomplete object, or nothing."""
        self._scanned = 0
        """Number of bytes of it that were scanned."""
        self._depth = 0
        self._in_string = False
        self._in_array = False
        self._array_ended = False
        self._comma = False
        """Whether the last byte between objects was a comma."""
        self._found = 0
        """Number of objects so far."""

    def feed(self, piece: bytes) -> Columns:
        text = self._text + piece
        start, position = 0, self._scanned
        first = self._found + 1
        objects: list[bytes] = []
        fault = None
        while fault is None:
            mark = self._pattern.search(text, position)
            if mark is None:
                break
            position = mark.end()
            if self._depth == 0:
                start = mark.start()
                fault = self._between(mark.group())
            elif self._inside(mark.group()):
                objects.append(text[start:position])
                self._found += 1
                start = position
        self._text = text[start:] if self._depth else b""
        # A backslash may be the last byte: it is scanned again together with the byte that it escapes.
        unfinished = self._in_string and position < len(text) and text.endswith(b"\\")
        self._scanned = len(self._text) - unfinished
        if fault is None and len(self._text) > MAX_RECORD_BYTES:
            fault = _too_long("record", self._found + 1)
        columns = self._decode(objects, first) if objects else Columns()
        columns.fault = columns.fault or fault
        return columns

    def end(self) -> Columns:
        if self._depth:
            return Columns(fault=InvalidRequest("invalid_json", f"record {self._found + 1} is incomplete"))
        if self._in_array and not self._array_ended:
            return Columns(fault=InvalidRequest("invalid_json", "the array is incomplete"))
        return Columns()

    @property
    def _pattern(self) -> re.Pattern[bytes]:
        if self._depth == 0:
            return _OUTSIDE
        return _IN_STRING if self._in_string else _IN_OBJECT

    def _between(self, mark: bytes) -> InvalidRequest | None:
        """Handle a byte between objects that is not white space."""
        expects_comma = self._in_array and self._found > 0 and not self._comma
        if mark == b"{" and not self._array_ended and not expects_comma:
            self._depth, self._comma = 1, False
        elif mark == b"[" and not self._in_array and not self._found:
            self._in_array = True
        elif mark == b"]" and self._in_array and not self._array_ended and not self._comma:
            self._array_ended = True
        elif mark == b"," and expects_comma and not self._array_ended:
            self._comma = True
        else:
            shown = mark.decode(errors="backslashreplace")
            after = f"after record {self._found}" if self._found else "at the beginning"
            return InvalidRequest("invalid_json", f"{after}: {shown!r} instead of a JSON object")
        return None

    def _inside(self, mark: bytes) -> bool:
        """Handle a byte that matters in an object. Return True if it ends the object."""
        if mark == b'"':
            self._in_string = not self._in_string
        elif mark in (b"{", b"["):
            self._depth += 1
        elif mark in (b"}", b"]"):
            self._depth -= 1
        return self._depth == 0


RecordInput: TypeAlias = LineInput | JsonInput
"""One file's bytes, in order, converted to records: `feed` for each piece, then `end`. After a fault, no more is fed.
"""


def record_input(format: str, *, key_separator: bytes | None = None, key_field: str | None = None) -> RecordInput:
    """Return the parser for one file. `format` is `lines`, `ndjson` or `json`."""
    if format == "lines":
        return LineInput(plain_values if key_separator is None else SeparatedKeys(key_separator))
    unit = "line" if format == "ndjson" else "record"
    decode = RecordObjects(unit) if key_field is None else KeyedObjects(key_field, unit)
    return LineInput(decode) if format == "ndjson" else JsonInput(decode)


def _too_long(unit: str, number: int) -> InvalidRequest:
    return InvalidRequest("batch_too_large", f"{unit} {number} is longer than {MAX_RECORD_BYTES} bytes")
