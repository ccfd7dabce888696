"""Formatting of consumed batches as bytes.

`ndjson` and `json` show a record like the HTTP API, with its partition, so that `raftlog produce --format ndjson` can
write it back byte for byte. `value` and `key-value` write the stored bytes and a line feed; there a tombstone and an
empty value look the same.

This module is pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from raftlog.client.consuming.records import ConsumedBatch
from raftlog.json_values import Shown, show_auto

FORMATS = ("value", "json", "ndjson", "key-value")


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


class Writer(Protocol):
    """A converter of batches to bytes, in order."""

    def batch(self, batch: ConsumedBatch, count: int) -> bytes:
        """Return the first `count` records of the batch, at least one. Raises `CorruptBatch`."""
        ...

    def end(self) -> bytes:
        """Return the end of the output."""
        ...


def writer(format: str, key_separator: bytes) -> Writer:
    """Return the writer for one of `FORMATS`."""
    if format == "json":
        return JsonWriter()
    if format == "ndjson":
        return LineWriter(_json_lines)
    if format == "value":
        return LineWriter(_values)
    return LineWriter(lambda batch, count: _keys_and_values(batch, count, key_separator))


class LineWriter:
    """A writer of one record per line."""

    def __init__(self, lines: Callable[[ConsumedBatch, int], bytes]) -> None:
        self._lines = lines

    def batch(self, batch: ConsumedBatch, count: int) -> bytes:
        return self._lines(batch, count)

    def end(self) -> bytes:
        return b""


class JsonWriter:
    """A writer of one array, with one record per line."""

    def __init__(self) -> None:
        self._begun = False

    def batch(self, batch: ConsumedBatch, count: int) -> bytes:
        before = b",\n" if self._begun else b"[\n"
        self._begun = True
        return before + b",\n".join(map(_encode, _records(batch, count)))

    def end(self) -> bytes:
        return b"\n]\n" if self._begun else b"[]\n"


_encoder = msgspec.json.Encoder()
_encode = _encoder.encode


def _json_lines(batch: ConsumedBatch, count: int) -> bytes:
    return _encoder.encode_lines(_records(batch, count))


def _values(batch: ConsumedBatch, count: int) -> bytes:
    values = batch.values()[:count]
    try:
        return b"\n".join(values) + b"\n"  # type: ignore[arg-type]
    except TypeError:  # one of them is a tombstone
        return b"".join((value or b"") + b"\n" for value in values)


def _keys_and_values(batch: ConsumedBatch, count: int, separator: bytes) -> bytes:
    pairs = zip(batch.keys()[:count], batch.values()[:count], strict=True)
    return b"".join((key or b"") + separator + (value or b"") + b"\n" for key, value in pairs)


def _records(batch: ConsumedBatch, count: int) -> list[_RecordOut]:
    columns = (batch.offsets(), batch.timestamps_ms(), batch.keys(), batch.values(), batch.headers())
    return [
        _RecordOut(
            batch.partition,
            offset,
            timestamp,
            show_auto(key),
            show_auto(value),
            [_HeaderOut(name, show_auto(content)) for name, content in headers] if headers else (),
        )
        for offset, timestamp, key, value, headers in zip(*(column[:count] for column in columns), strict=True)
    ]
