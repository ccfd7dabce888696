"""Formatting of consumed batches as bytes.

`ndjson` and `json` show a record like the HTTP API, with its partition, so that `raftlog produce --format ndjson` can
write it back byte for byte. `value` and `key-value` write the stored bytes and a line feed; there a tombstone and an
empty value look the same.

This module is pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from raftlog.client.consuming.records import ConsumedBatch
from raftlog.json_values import Shown, show_auto


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


class Writer:
    """A converter of batches to bytes, in order: `batch` for each, then `end`."""

    def __init__(self, convert: Callable[[ConsumedBatch, int], bytes], *, is_array: bool = False) -> None:
        """`convert` returns lines, or with `is_array` the entries of one array."""
        self._convert = convert
        self._is_array = is_array
        self._before = b"[\n"

    def batch(self, batch: ConsumedBatch, count: int) -> bytes:
        converted = self._convert(batch, count)
        if not self._is_array:
            return converted
        before, self._before = self._before, b",\n"
        return before + converted

    def end(self) -> bytes:
        if not self._is_array:
            return b""
        return b"[]\n" if self._before == b"[\n" else b"\n]\n"


def writer(format: str, key_separator: bytes) -> Writer:
    """Return the writer for a value of `--format`."""
    if format == "json":
        return Writer(lambda batch, count: b",\n".join(map(_encoder.encode, _records(batch, count))), is_array=True)
    if format == "ndjson":
        return Writer(lambda batch, count: _encoder.encode_lines(_records(batch, count)))
    if format == "value":
        return Writer(_values)
    return Writer(lambda batch, count: _keys_and_values(batch, count, key_separator))


_encoder = msgspec.json.Encoder()


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
