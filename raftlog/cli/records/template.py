"""Templates of records: `%t %p %o %k %v\\n`, as in kcat and rpk.

| | |
|---|---|
| `%t` | topic |
| `%p` | partition |
| `%o` | offset |
| `%k` | key, as stored; nothing if there is none |
| `%v`, `%s` | value, as stored; nothing for a tombstone |
| `%h` | headers: `name=value`, separated by commas |
| `%d` | timestamp: ISO 8601 in UTC, with milliseconds |
| `%T` | timestamp in milliseconds since 1970 |
| `%K`, `%S` | length of the key and of the value in bytes; -1 if there is none |
| `%%` | a percent sign |

A key, a value or headers may have an encoding: `%k{hex}`, `%v{base64}`, `%v{utf8}` (invalid bytes become U+FFFD) or
`%v{json}` (a JSON string or document, `null` if there is none). Escapes are `\\n`, `\\r`, `\\t`, `\\0`, `\\\\` and
`\\x41`. Nothing is added after a record: a template usually ends with `\\n`.

This module is pure.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec

from raftlog.errors import InvalidRequest
from raftlog.json_values import show_auto
from raftlog.records.batch import Header

from .run import RecordColumns

_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}
_TOKEN = re.compile(
    r"%(?P<field>[a-zA-Z%])(?:\{(?P<encoding>[a-z0-9]{1,16})\})?|\\x(?P<hex>[0-9a-fA-F]{2})|\\(?P<escape>.)|(?P<text>[^%\\]+)",
    re.DOTALL,
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Row(NamedTuple):
    """One record with its place."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]


Part = Callable[[Row], bytes]
Encoding = Callable[[bytes | None], bytes]


def _json(content: bytes | None) -> bytes:
    return msgspec.json.encode(show_auto(content))


ENCODINGS: dict[str, Encoding] = {
    "raw": lambda content: content or b"",
    "hex": lambda content: (content or b"").hex().encode(),
    "base64": lambda content: base64.b64encode(content or b""),
    "utf8": lambda content: (content or b"").decode(errors="replace").encode(),
    "json": _json,
}


def _time(row: Row) -> bytes:
    if row.timestamp_ms < 0:
        return b"-"
    try:
        moment = _EPOCH + timedelta(milliseconds=row.timestamp_ms)
    except OverflowError:  # after the year 9999
        return str(row.timestamp_ms).encode()
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{row.timestamp_ms % 1000:03}Z".encode()


def _length(content: bytes | None) -> bytes:
    return b"-1" if content is None else str(len(content)).encode()


_PLAIN: dict[str, Part] = {
    "t": lambda row: row.topic.encode(),
    "p": lambda row: str(row.partition).encode(),
    "o": lambda row: str(row.offset).encode(),
    "d": _time,
    "T": lambda row: str(row.timestamp_ms).encode(),
    "K": lambda row: _length(row.key),
    "S": lambda row: _length(row.value),
    "%": lambda row: b"%",
}
_ENCODED: dict[str, Callable[[Encoding], Part]] = {
    "k": lambda encoding: lambda row: encoding(row.key),
    "v": lambda encoding: lambda row: encoding(row.value),
    "s": lambda encoding: lambda row: encoding(row.value),
    "h": lambda encoding: (
        lambda row: b",".join(b"%b=%b" % (name.encode(), encoding(content)) for name, content in row.headers)
    ),
}


class Template:
    """A parsed template. Raises `InvalidRequest` for one that is not valid."""

    def __init__(self, text: str) -> None:
        self._parts: list[Part] = []
        end = 0
        while (token := _TOKEN.match(text, end)) is not None:
            self._parts.append(_part(token))
            end = token.end()
        if end < len(text):
            raise _invalid(f"{text[end : end + 8]!r} begins neither a field nor an escape; %% is a percent sign")

    def format(self, batch: RecordColumns, count: int) -> bytes:
        """Return the first `count` records of a batch."""
        parts = self._parts
        columns = (batch.offsets(), batch.timestamps_ms(), batch.keys(), batch.values(), batch.headers())
        rows = (
            Row(batch.topic, batch.partition, *record)
            for record in zip(*(column[:count] for column in columns), strict=True)
        )
        return b"".join([part(row) for row in rows for part in parts])


def _part(token: re.Match[str]) -> Part:
    if (text := token["text"]) is not None:
        return _constant(text.encode())
    if (code := token["hex"]) is not None:
        return _constant(bytes.fromhex(code))
    if (escape := token["escape"]) is not None:
        if escape not in _ESCAPES:
            raise _invalid(f"\\{escape} is not an escape: there are {', '.join(chr(92) + one for one in _ESCAPES)}")
        return _constant(_ESCAPES[escape])
    field, encoding = token["field"], token["encoding"]
    if field in _ENCODED:
        if encoding is not None and encoding not in ENCODINGS:
            raise _invalid(f"%{field}{{{encoding}}}: the encodings are {', '.join(ENCODINGS)}")
        return _ENCODED[field](ENCODINGS[encoding or "raw"])
    if field not in _PLAIN:
        known = ", ".join(f"%{one}" for one in (*_PLAIN, *_ENCODED))
        raise _invalid(f"%{field} is not a field: there are {known}")
    if encoding is not None:
        raise _invalid(f"%{field} has no encoding")
    return _PLAIN[field]


def _constant(content: bytes) -> Part:
    return lambda row: content


def _invalid(why: str) -> InvalidRequest:
    return InvalidRequest("invalid_request", f"the template of --format is not valid: {why}")
