"""Formatting of consumed batches as bytes.

`ndjson` and `json` show a record like the HTTP API, with its partition, so that `raftlog produce --format ndjson` can
write it back byte for byte. `value` and `key-value` write the stored bytes and a line feed; there a tombstone and an
empty value look the same. A template has any of a record's parts (`template.py`).

This module is pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec import UNSET, UnsetType

from raftlog.errors import InvalidRequest
from raftlog.json_values import Shown, show_auto

from .run import RecordColumns
from .template import Template

PRESETS = ("value", "key-value", "ndjson", "json")


class _HeaderOut(msgspec.Struct, gc=False):
    key: str
    value: Shown


class _RecordOut(msgspec.Struct, gc=False):
    partition: int
    offset: int
    timestamp: int
    key: Shown
    value: Shown
    headers: Sequence[_HeaderOut]
    topic: str | UnsetType = UNSET
    """Given if there are several."""


class Writer:
    """A converter of batches to bytes, in order: `batch` for each, then `end`."""

    def __init__(self, convert: Callable[[RecordColumns, int], bytes], *, is_array: bool = False) -> None:
        """`convert` returns lines, or with `is_array` the entries of one array."""
        self._convert = convert
        self._is_array = is_array
        self._before = b"[\n"

    def batch(self, batch: RecordColumns, count: int) -> bytes:
        converted = self._convert(batch, count)
        if not self._is_array:
            return converted
        before, self._before = self._before, b",\n"
        return before + converted

    def end(self) -> bytes:
        if not self._is_array:
            return b""
        return b"[]\n" if self._before == b"[\n" else b"\n]\n"


def writer(format: str, key_separator: bytes, *, with_topic: bool = False) -> Writer:
    """Return the writer for a value of `--format`: one of `PRESETS`, or a template, which has a `%`.

    `with_topic`: JSON names the topic. Raises `InvalidRequest`.
    """

    def encoded(batch: RecordColumns, count: int) -> list[_RecordOut]:
        return _records(batch, count, batch.topic if with_topic else UNSET)

    if format == "json":
        return Writer(lambda batch, count: b",\n".join(map(_encoder.encode, encoded(batch, count))), is_array=True)
    if format == "ndjson":
        return Writer(lambda batch, count: _encoder.encode_lines(encoded(batch, count)))
    if format == "value":
        return Writer(_values)
    if format == "key-value":
        return Writer(lambda batch, count: _keys_and_values(batch, count, key_separator))
    if "%" not in format:
        told = f"{format[:64]!r} is no format: give {', '.join(PRESETS)}, or a template such as '%t %p %o %k %v\\n'"
        raise InvalidRequest("invalid_request", told)
    return Writer(Template(format).format)


_encoder = msgspec.json.Encoder()


def _values(batch: RecordColumns, count: int) -> bytes:
    values = batch.values()[:count]
    try:
        return b"\n".join(values) + b"\n"  # type: ignore[arg-type]
    except TypeError:  # one of them is a tombstone
        return b"".join((value or b"") + b"\n" for value in values)


def _keys_and_values(batch: RecordColumns, count: int, separator: bytes) -> bytes:
    pairs = zip(batch.keys()[:count], batch.values()[:count], strict=True)
    return b"".join((key or b"") + separator + (value or b"") + b"\n" for key, value in pairs)


def _records(batch: RecordColumns, count: int, topic: str | UnsetType) -> list[_RecordOut]:
    columns = (batch.offsets(), batch.timestamps_ms(), batch.keys(), batch.values(), batch.headers())
    return [
        _RecordOut(
            batch.partition,
            offset,
            timestamp,
            show_auto(key),
            show_auto(value),
            [_HeaderOut(name, show_auto(content)) for name, content in headers] if headers else (),
            topic,
        )
        for offset, timestamp, key, value, headers in zip(*(column[:count] for column in columns), strict=True)
    ]
