"""Parsing of a produce request's body into columns of records.

Four kinds of body: JSON (`{"records": [...]}`), JSON lines, text (a record a line), octets (one record). The first two
are decoded by msgspec into typed records, in slices, because a call into C holds the GIL; then column by column. An
error names the record and the offending member, and the whole request is refused.

Pure, and safe to run in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from http_api.web.limits import MAX_RECORD_JSON_BYTES, MAX_RECORDS_PER_REQUEST, SLICE_BYTES
from http_api.web.query import MAX_INT64, check_timestamp
from raftlog.config import MAX_BATCH_BYTES
from raftlog.errors import InvalidRequest
from raftlog.json_values import JSON_ERRORS, RecordIn, json_refused, string_column, value_bytes

from .json_slices import RECORDS_DOCUMENT, NotSliced, list_slices

R = TypeVar("R")

RecordHeaders = Sequence[tuple[str, bytes | None]]

NO_HEADERS: RecordHeaders = ()
"""Shared by all records without headers: a list for each would be work for the garbage collector."""


class RecordColumns(msgspec.Struct):
    """Records by column, all columns of one length. A timestamp of None stands for the time of the request."""

    values: list[bytes | None] = []
    keys: list[bytes | None] = []
    timestamps_ms: list[int | None] = []
    headers: list[RecordHeaders] = []
    partitions: list[int | None] = []
    """The partition that the record itself names."""

    def __len__(self) -> int:
        return len(self.values)


_lines = msgspec.json.Decoder(RecordIn)
_list = msgspec.json.Decoder(list[RecordIn])


def parse_json(body: bytes) -> RecordColumns:
    """Parse `{"records": [...]}`. Raises `InvalidRequest`."""
    return parse_list(body, RECORDS_DOCUMENT, _list, _append)


def parse_list(
    body: bytes,
    document: msgspec.json.Decoder[Any],
    decoder: msgspec.json.Decoder[list[R]],
    append: Callable[[RecordColumns, list[R]], None],
) -> RecordColumns:
    """Parse a document with a list of records, each of the decoder's type, of which `append` makes columns. Raises
    `InvalidRequest`."""
    columns = RecordColumns()
    try:
        for text in list_slices(body, document=document):
            records = _decode_records(decoder, text, len(columns))
            if not records and columns.values:
                raise InvalidRequest("invalid_json", "JSON is malformed: nothing follows the last comma of the list")
            append(columns, records)
            _check_count(len(columns))
    except NotSliced as fault:
        _decode_records(decoder, fault.text, len(columns))
        raise InvalidRequest("invalid_json", "the body has text after the list of records") from None
    return _checked(columns)


def parse_ndjson(body: bytes) -> RecordColumns:
    """Parse one record per line; blank lines are skipped. Raises `InvalidRequest`."""
    columns = RecordColumns()
    line = 1
    for piece in line_slices(body, SLICE_BYTES):
        _check_length(piece, line, MAX_RECORD_JSON_BYTES)
        _check_count(len(columns) + piece.count(b"\n"))
        _append(columns, _decode_lines(piece, line))
        line += piece.count(b"\n")
    return _checked(columns)


def parse_text(body: bytes, record: RecordOptions) -> RecordColumns:
    """Parse one text record per line; LF or CRLF ends a record and is not part of it. Raises `InvalidRequest`."""
    columns = RecordColumns()
    _check_count(body.count(b"\n"))
    for piece in line_slices(body, SLICE_BYTES):
        _check_length(piece, len(columns) + 1, MAX_BATCH_BYTES)
        try:
            piece.decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest(
                "invalid_request",
                f"the text is not UTF-8 ({error.reason}); send binary data as application/octet-stream",
            ) from None
        lines = piece.replace(b"\r\n", b"\n").split(b"\n")
        if not lines[-1]:
            lines.pop()
        columns.values += lines
    _repeat(columns, record)
    return _checked(columns)


def parse_octets(body: bytes, record: RecordOptions) -> RecordColumns:
    """Return the body as the value of one record."""
    columns = RecordColumns(values=[body])
    _repeat(columns, record)
    return columns


class RecordOptions(msgspec.Struct, frozen=True):
    """The properties of records that query or headers give, because the body cannot."""

    key: bytes | None = None
    timestamp_ms: int | None = None
    headers: RecordHeaders = ()


def line_slices(body: bytes, slice_bytes: int) -> Iterator[bytes]:
    """Yield the body in pieces of about `slice_bytes`; each but the last ends with a line feed."""
    start = 0
    while start < len(body):
        end = body.find(b"\n", start + slice_bytes - 1) + 1 or len(body)
        yield body[start:end]
        start = end


def _repeat(columns: RecordColumns, record: RecordOptions) -> None:
    count = len(columns)
    columns.keys = [record.key] * count
    columns.timestamps_ms = [record.timestamp_ms] * count
    columns.headers = [record.headers] * count
    columns.partitions = [None] * count


def _decode_lines(piece: bytes, first_line: int) -> list[RecordIn]:
    """Return the records of some whole lines."""
    try:
        records = _lines.decode_lines(piece)
    except JSON_ERRORS:
        records = []
    if len(records) == piece.count(b"\n") + (not piece.endswith(b"\n")):
        return records
    # Blank lines, an error, or records that span lines: decode one by one, so that the line number is known.
    return [
        _decode_line(line, number)
        for number, line in enumerate(piece.split(b"\n"), first_line)
        if line and not line.isspace()
    ]


def _decode_line(line: bytes, number: int) -> RecordIn:
    try:
        return _lines.decode(line)
    except JSON_ERRORS as error:
        raise json_refused(error, f"line {number}: ") from None


def _decode_records(decoder: msgspec.json.Decoder[list[R]], text: bytes, first: int) -> list[R]:
    """Decode a list of records. `first`: the number of the first. Raises `InvalidRequest`."""
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        # msgspec says "... - at `$[7].value`".
        before, _, path = str(error).rpartition("`$[")
        index, _, rest = path.partition("]")
        where = f"records[{first + int(index)}]{rest}" if index.isdigit() else f"records: {path}"
        raise InvalidRequest("invalid_request", f"{before}`{where}") from None
    except JSON_ERRORS as error:
        if str(error) == _TRUNCATED:
            raise InvalidRequest(
                "batch_too_large", f"records[{first}] or one after it has more than {MAX_RECORD_JSON_BYTES} bytes"
            ) from None
        raise json_refused(error, f"in the list of records, from records[{first}] on: ") from None


def _truncation() -> str:
    """Return msgspec's message for trailing text."""
    try:
        _list.decode(b"[")
    except msgspec.DecodeError as error:
        return str(error)
    raise AssertionError("a lone bracket is no list")


_TRUNCATED = _truncation()


def _append(columns: RecordColumns, records: list[RecordIn]) -> None:
    """Append records, column by column."""
    base = len(columns)
    columns.values += _bytes_column(records, "value", base)
    columns.keys += _bytes_column(records, "key", base)
    columns.headers += [
        NO_HEADERS if not record.headers else _headers_of(record, base + index) for index, record in enumerate(records)
    ]
    columns.partitions += [record.partition for record in records]
    append_timestamps(columns, [record.timestamp for record in records], base)


def append_timestamps(columns: RecordColumns, timestamps: list[int | None], base: int) -> None:
    """Append the timestamps of records, of which the first has the number `base`. Raises `InvalidRequest`."""
    if timestamps.count(None) < len(timestamps):
        for number, timestamp in enumerate(timestamps, base):
            if timestamp is not None and not 0 <= timestamp <= MAX_INT64:
                check_timestamp(f"timestamp of record {number}", timestamp)
    columns.timestamps_ms += timestamps


def _bytes_column(records: list[RecordIn], name: str, base: int) -> list[bytes | None]:
    raws: list[Any] = [getattr(record, name) for record in records]
    column = string_column(raws)  # usually all are strings or null
    if column is None:
        return [_value_of(raw, f"{name} of record {base + index}") for index, raw in enumerate(raws)]
    return column


def _value_of(raw: msgspec.Raw, name: str) -> bytes | None:
    try:
        return value_bytes(bytes(raw))
    except InvalidRequest as error:
        raise InvalidRequest(error.code, f"{name}: {error.detail}") from None


def _headers_of(record: RecordIn, number: int) -> RecordHeaders:
    return [(name, _value_of(raw, f"header {name[:64]!r} of record {number}")) for name, raw in record.header_pairs]


def _check_length(piece: bytes, first_line: int, most: int) -> None:
    """Refuse lines that fit no batch before they are parsed: only one line of a piece can exceed a slice."""
    if len(piece) > most + SLICE_BYTES:
        number = first_line + piece.count(b"\n", 0, -1)
        raise InvalidRequest("batch_too_large", f"line {number} has more than {most} bytes")


def _check_count(count: int) -> None:
    if count > MAX_RECORDS_PER_REQUEST:
        raise InvalidRequest("body_too_large", f"a request has at most {MAX_RECORDS_PER_REQUEST} records")


def _checked(columns: RecordColumns) -> RecordColumns:
    if not columns.values:
        raise InvalidRequest("invalid_request", "the body has no records")
    _check_count(len(columns))
    return columns
