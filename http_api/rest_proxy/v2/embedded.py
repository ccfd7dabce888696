"""Keys and values inside JSON, in the three formats of version 2, in both directions.

    binary   base64 of the bytes
    json     the JSON that the bytes are
    text     the text that the bytes are, in UTF-8

null is no key, or a record without a value (a tombstone), in each of them. JSON is stored as it was sent, so that no
number loses a digit. A record that a format cannot show ends a page: it is never changed or left out.

Pure, and safe to run in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any

import msgspec

from http_api.records.json_slices import RecordsDocument
from http_api.records.page import Columns, Rows
from http_api.records.parse import NO_HEADERS, RecordColumns, RecordHeaders, append_timestamps, parse_list
from raftlog.errors import InvalidRequest
from raftlog.json_values import JSON_ERRORS, MAX_SHOWN_DEPTH, NULL, deeper_than, string_column

from .media_types import BINARY, JSON, TEXT


class ProduceDocument(RecordsDocument, forbid_unknown_fields=True):
    """The body of a produce request. Members about schemas must be null: raftlog has no schema registry."""

    key_schema: None = None
    key_schema_id: None = None
    value_schema: None = None
    value_schema_id: None = None


class HeaderIn(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A header of a record; its value in base64, whatever the format of the record is."""

    key: str
    value: bytes | None = None


class RecordIn(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A record of a produce request."""

    key: msgspec.Raw = NULL
    value: msgspec.Raw = NULL
    partition: int | None = None
    timestamp: int | None = None
    headers: list[HeaderIn] | None = None


class HeaderOut(msgspec.Struct, gc=False):
    key: str
    value: bytes | None


class RecordOut(msgspec.Struct, gc=False):
    """A record of an answer: `value` and `key` in the reader's format."""

    topic: str
    key: Any
    value: Any
    partition: int
    offset: int
    timestamp: int
    headers: Sequence[HeaderOut]


_document = msgspec.json.Decoder(ProduceDocument)
_records = msgspec.json.Decoder(list[RecordIn])
_base64_column = msgspec.json.Decoder(list[bytes | None]).decode
_json = msgspec.json.Decoder(msgspec.Raw).decode


# --- In --------------------------------------------------------------------------------------------------------------


def parse(body: bytes, embedded: str, partition: int | None = None) -> RecordColumns:
    """Parse a produce request's body with keys and values in a format. `partition`: the one in the path, where records
    may not name one. Raises `InvalidRequest`."""
    column = _COLUMNS[embedded]

    def append(columns: RecordColumns, records: list[RecordIn]) -> None:
        base = len(columns)
        columns.keys += _column(column, [record.key for record in records], "key", base)
        columns.values += _column(column, [record.value for record in records], "value", base)
        columns.headers += [_headers_of(record) if record.headers else NO_HEADERS for record in records]
        named = [record.partition for record in records]
        if partition is not None and any(one not in (None, partition) for one in named):
            raise InvalidRequest("invalid_request", "the path names the partition: records may not name another")
        columns.partitions += named
        append_timestamps(columns, [record.timestamp for record in records], base)

    return parse_list(body, _document, _records, append)


def _column(
    decode: Callable[[list[Any]], list[bytes | None] | None], raws: list[Any], name: str, base: int
) -> list[bytes | None]:
    found = decode(raws)
    if found is not None:
        return found
    for number, raw in enumerate(raws, base):
        if decode([raw]) is None:
            raise InvalidRequest("invalid_json", f"{name} of record {number} is not in the format of the body")
    raise AssertionError("a column cannot be decoded, but each of its values can")


def _binary_column(raws: list[Any]) -> list[bytes | None] | None:
    try:
        return _base64_column(b"[" + b",".join(raws) + b"]")
    except JSON_ERRORS:
        return None


def _json_column(raws: list[Any]) -> list[bytes | None] | None:
    values = [bytes(raw) for raw in raws]
    try:
        for value in values:
            value.decode()
    except UnicodeDecodeError:
        return None
    return [None if value == b"null" else value for value in values]


_COLUMNS: Mapping[str, Callable[[list[Any]], list[bytes | None] | None]] = {
    BINARY: _binary_column,
    JSON: _json_column,
    TEXT: string_column,
}


def _headers_of(record: RecordIn) -> RecordHeaders:
    return [(header.key, header.value) for header in record.headers or ()]


# --- Out -------------------------------------------------------------------------------------------------------------


def rows_of(topic: str, partition: int, embedded: str) -> Rows:
    """Return what makes the documents of records of a partition in a format."""
    show = _SHOW[embedded]

    def rows(columns: Columns, chosen: slice) -> list[Any]:
        return list(
            map(
                RecordOut,
                repeat(topic),
                show(columns.keys[chosen]),
                show(columns.values[chosen]),
                repeat(partition),
                columns.offsets[chosen],
                columns.timestamps_ms[chosen],
                [_headers_out(headers) if headers else () for headers in columns.headers[chosen]],
            )
        )

    return rows


def can_show(embedded: str) -> Callable[[bytes | None], bool] | None:
    """Return what tells whether a format can show a key or value; None: it shows every one."""
    return _CAN_SHOW[embedded]


def _headers_out(headers: Sequence[tuple[str, bytes | None]]) -> Sequence[HeaderOut]:
    return [HeaderOut(name, value) for name, value in headers]


def _show_binary(values: Sequence[bytes | None]) -> Sequence[Any]:
    return values


def _show_json(values: Sequence[bytes | None]) -> Sequence[Any]:
    return [None if value is None else msgspec.Raw(value) for value in values]


def _show_text(values: Sequence[bytes | None]) -> Sequence[Any]:
    return [None if value is None else value.decode() for value in values]


def _is_json(value: bytes | None) -> bool:
    if value is None:
        return True
    try:
        value.decode()
        _json(value)
    except JSON_ERRORS:
        return False
    return not deeper_than(value, MAX_SHOWN_DEPTH)


def _is_text(value: bytes | None) -> bool:
    try:
        return value is None or bool(value.decode()) or True
    except UnicodeDecodeError:
        return False


_SHOW: Mapping[str, Callable[[Sequence[bytes | None]], Sequence[Any]]] = {
    BINARY: _show_binary,
    JSON: _show_json,
    TEXT: _show_text,
}
_CAN_SHOW: Mapping[str, Callable[[bytes | None], bool] | None] = {BINARY: None, JSON: _is_json, TEXT: _is_text}
