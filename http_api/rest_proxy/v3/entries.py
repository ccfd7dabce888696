"""Records of version 3 in JSON: each key and value names its own type.

A record that is not valid gets an error of its own, and the others are appended.

Pure, and safe to run in a thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from http_api.records.pack import PackedBatch, Target, pack
from http_api.records.parse import RecordColumns
from raftlog.errors import InvalidRequest
from raftlog.json_values import JSON_ERRORS, NULL, json_refused
from raftlog.trace_context import TraceContext, with_trace

BINARY, JSON, STRING = "BINARY", "JSON", "STRING"


class DataIn(msgspec.Struct, gc=False):
    """A key or value. Members about schemas are refused by its type: raftlog has no schema registry."""

    type: str = ""
    data: msgspec.Raw = NULL


class HeaderIn(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A header of a record; its value in base64."""

    name: str
    value: bytes | None = None


class EntryIn(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A record."""

    partition_id: int | None = None
    headers: list[HeaderIn] | None = None
    key: DataIn | None = None
    value: DataIn | None = None
    timestamp: datetime | None = None


class DataOut(msgspec.Struct, gc=False):
    """Type and size in bytes of a key or value that was appended."""

    type: str
    size: int


class Entry(msgspec.Struct, frozen=True):
    """A record that is ready to be appended."""

    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    timestamp_ms: int | None
    key_type: str
    value_type: str

    @property
    def shown_key(self) -> DataOut | None:
        """Type and size of its key."""
        return None if self.key is None else DataOut(self.key_type, len(self.key))

    @property
    def shown_value(self) -> DataOut | None:
        """Type and size of its value."""
        return None if self.value is None else DataOut(self.value_type, len(self.value))


_entry = msgspec.json.Decoder(EntryIn).decode
_entries = msgspec.json.Decoder(list[EntryIn]).decode
_base64 = msgspec.json.Decoder(bytes).decode
_string = msgspec.json.Decoder(str).decode


def parse(objects: Sequence[bytes]) -> list[Entry | InvalidRequest]:
    """Return the records of these JSON objects, or what is wrong with them."""
    try:
        return [ready(one) for one in _entries(b"[" + b",".join(objects) + b"]")]
    except (*JSON_ERRORS, InvalidRequest):
        return [_parse(text) for text in objects]


def _parse(text: bytes) -> Entry | InvalidRequest:
    try:
        return ready(_entry(text))
    except JSON_ERRORS as error:
        return json_refused(error)
    except InvalidRequest as error:
        return error


def ready(one: EntryIn) -> Entry:
    """Return a decoded record. Raises `InvalidRequest`."""
    key, value = one.key, one.value
    return Entry(
        one.partition_id,
        None if key is None else _bytes_of("key", key),
        None if value is None else _bytes_of("value", value),
        [(header.name, header.value) for header in one.headers] if one.headers else (),
        None if one.timestamp is None else _milliseconds(one.timestamp),
        "" if key is None else key.type,
        "" if value is None else value.type,
    )


def _bytes_of(name: str, given: DataIn) -> bytes | None:
    raw: Any = given.data
    try:
        if bytes(raw) == b"null":
            return None
        match given.type:
            case "BINARY":
                return _base64(raw)
            case "JSON":
                return bytes(raw)
            case "STRING":
                return _string(raw).encode()
    except JSON_ERRORS as error:
        raise InvalidRequest("invalid_request", f"the data of the {name} is not {given.type}: {error}") from None
    found = repr(given.type[:32]) if given.type else "missing"
    raise InvalidRequest(
        "invalid_request", f"the type of the {name} is {found}; it must be {BINARY}, {JSON} or {STRING} (no schemas)"
    )


def _milliseconds(time: datetime) -> int:
    """Return a time without a zone as one in UTC."""
    aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    milliseconds = round(aware.timestamp() * 1000)
    if milliseconds < 0:
        raise InvalidRequest("timestamp_out_of_range", "the timestamp is before 1970")
    return milliseconds


def pack_valid(
    entries: Sequence[Entry | InvalidRequest], target: Target, now_ms: int, trace: TraceContext | None = None
) -> tuple[list[Entry | InvalidRequest], list[int], list[PackedBatch]]:
    """Return the records with the errors of those that the topic cannot take, the places of the others, and their
    batches, whose records are numbered by those places. `trace` is that of the request."""
    checked = list(entries)
    places = [number for number, one in enumerate(checked) if isinstance(one, Entry)]
    try:
        return checked, places, _pack([one for one in checked if isinstance(one, Entry)], target, now_ms, trace)
    except InvalidRequest:
        for number in places:
            one = checked[number]
            assert isinstance(one, Entry)
            try:
                _pack([one], target, now_ms, trace)
            except InvalidRequest as error:
                checked[number] = error
    good = [number for number in places if isinstance(checked[number], Entry)]
    return checked, good, _pack([one for one in checked if isinstance(one, Entry)], target, now_ms, trace)


def _pack(entries: Sequence[Entry], target: Target, now_ms: int, trace: TraceContext | None) -> list[PackedBatch]:
    if not entries:
        return []
    columns = RecordColumns(
        values=[one.value for one in entries],
        keys=[one.key for one in entries],
        timestamps_ms=[one.timestamp_ms for one in entries],
        headers=[one.headers if trace is None else with_trace(one.headers, trace) for one in entries],
        partitions=[one.partition for one in entries],
    )
    return pack(columns, target, now_ms)
