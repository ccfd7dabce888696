"""Conversion of pieces of input, one for each record, to columns of records. `input.py` divides the input.

An object is a record in the form of the HTTP API and of `consume`: `{"value": ..., "key": ..., "timestamp": ...,
"headers": ..., "partition": ...}`. With a key field an object is itself a value: it is stored as a whole, and that
field is its key.

An error does not affect the records before it: `Columns.fault` stands for the rest of the input.

This module is pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from raftlog.errors import InvalidRequest
from raftlog.json_values import NULL, value_bytes

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(slots=True)
class Columns:
    """Some records, and the error that prevents reading the rest of the input, if any."""

    values: list[bytes | None] = field(default_factory=list)
    keys: list[bytes | None] | None = None
    """None if no record has a key; likewise the other columns."""
    timestamps_ms: list[int | None] | None = None
    headers: list[Headers] | None = None
    partitions: list[int | None] | None = None
    fault: InvalidRequest | None = None

    def __len__(self) -> int:
        return len(self.values)

    def sizes(self) -> list[int]:
        """Return the bytes of key and value of each record."""
        sizes = [0 if value is None else len(value) for value in self.values]
        if self.keys is None:
            return sizes
        return [size + (0 if key is None else len(key)) for size, key in zip(sizes, self.keys, strict=True)]

    def first(self, count: int) -> Columns:
        """Return the first `count` records."""
        return self if count == len(self) else self.take(range(count))

    def take(self, rows: Sequence[int]) -> Columns:
        """Return the records with these indexes."""
        return Columns(
            [self.values[row] for row in rows],
            None if self.keys is None else [self.keys[row] for row in rows],
            None if self.timestamps_ms is None else [self.timestamps_ms[row] for row in rows],
            None if self.headers is None else [self.headers[row] for row in rows],
            None if self.partitions is None else [self.partitions[row] for row in rows],
        )


def rows_by_partition(partitions: Sequence[int | None]) -> dict[int | None, list[int]]:
    """Return the record indexes for each partition, in order, which matters only within a partition."""
    rows: dict[int | None, list[int]] = {}
    for row, partition in enumerate(partitions):
        rows.setdefault(partition, []).append(row)
    return rows


Decode = Callable[[list[bytes], int], Columns]
"""A function of pieces and the number of the first one (from 1), which returns records."""


def plain_values(pieces: list[bytes], first: int) -> Columns:
    """Take every piece as a value."""
    return Columns(list(pieces))


class SeparatedKeys:
    """A decoder of lines with key, separator and value."""

    def __init__(self, separator: bytes) -> None:
        self._separator = separator

    def __call__(self, pieces: list[bytes], first: int) -> Columns:
        parts = [piece.partition(self._separator) for piece in pieces]
        columns = Columns([value for _, _, value in parts], [key for key, _, _ in parts])
        without = next((index for index, (_, separator, _) in enumerate(parts) if not separator), None)
        if without is not None:
            columns = columns.first(without)
            shown = self._separator.decode(errors="replace")
            columns.fault = InvalidRequest("invalid_request", f"line {first + without} has no key separator {shown!r}")
        return columns


class _HeaderIn(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    key: str
    value: msgspec.Raw = NULL


class _RecordIn(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A record in the form of the HTTP API. `offset`, which `consume` writes, is ignored: a copy gets its own."""

    value: msgspec.Raw
    key: msgspec.Raw = NULL
    timestamp: Annotated[int, Meta(ge=-1, le=2**62)] | None = None
    headers: dict[str, msgspec.Raw] | list[_HeaderIn] | None = None
    partition: Annotated[int, Meta(ge=0)] | None = None
    offset: int | None = None


_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_decode_strings = msgspec.json.Decoder(list[str | None]).decode


class _Decoded(NamedTuple):
    """Decoded pieces, their numbers, the objects, and the error that ended decoding."""

    pieces: list[bytes]
    numbers: list[int]
    objects: list[Any]
    fault: InvalidRequest | None


class _Objects:
    """A decoder of JSON objects of one type. Empty pieces are skipped."""

    hint = ""
    """Advice about an object of another type."""

    def __init__(self, kind: Any, unit: str) -> None:
        self._decode = msgspec.json.Decoder(kind).decode
        self._unit = unit
        """The unit that is numbered: lines or records."""

    def decode(self, pieces: list[bytes], first: int) -> _Decoded:
        """Decode up to the first piece that is not an object of this type."""
        try:
            return _Decoded(pieces, list(range(first, first + len(pieces))), list(map(self._decode, pieces)), None)
        except _UNREADABLE:
            return self._one_by_one(pieces, first)

    def _one_by_one(self, pieces: list[bytes], first: int) -> _Decoded:
        found = _Decoded([], [], [], None)
        for number, piece in enumerate(pieces, first):
            if not piece or piece.isspace():
                continue
            try:
                found.objects.append(self._decode(piece))
            except msgspec.ValidationError as error:
                return found._replace(fault=self.fault("invalid_request", number, f"{error}{self.hint}"))
            except RecursionError:
                return found._replace(fault=self.fault("invalid_json", number, "it is nested too deeply"))
            except _UNREADABLE as error:
                return found._replace(fault=self.fault("invalid_json", number, str(error)))
            found.pieces.append(piece)
            found.numbers.append(number)
        return found

    def bytes_column(
        self, raws: list[Any], numbers: list[int], name: str
    ) -> tuple[list[bytes | None], InvalidRequest | None]:
        """Return JSON values as bytes, up to the first invalid one, and its error."""
        try:
            # Usually all values are strings or null; then one call decodes the column.
            strings = _decode_strings(b"[" + b",".join(raws) + b"]")
        except _UNREADABLE:
            column: list[bytes | None] = []
            for raw, number in zip(raws, numbers, strict=True):
                try:
                    column.append(value_bytes(bytes(raw)))
                except InvalidRequest as error:
                    return column, self.fault(error.code, number, f"{name}: {error.detail}")
            return column, None
        return [None if string is None else string.encode() for string in strings], None

    def fault(self, code: str, number: int, why: str) -> InvalidRequest:
        return InvalidRequest(code, f"{self._unit} {number}: {why}")


class KeyedObjects(_Objects):
    """A decoder of objects that are values, with a key in one of their fields; null means no key."""

    def __init__(self, key_field: str, unit: str) -> None:
        kind = msgspec.defstruct("Keyed", [("key", msgspec.Raw)], rename={"key": key_field}, gc=False)
        super().__init__(kind, unit)
        self._field = key_field

    def __call__(self, pieces: list[bytes], first: int) -> Columns:
        kept, numbers, objects, fault = self.decode(pieces, first)
        # One line each, as in `lines` and `consume --format value`; numbers keep their digits.
        values: list[bytes | None] = [msgspec.json.format(text, indent=-1) if b"\n" in text else text for text in kept]
        keys, bad = self.bytes_column([found.key for found in objects], numbers, self._field)
        columns = Columns(values[: len(keys)], keys)
        columns.fault = bad or fault
        return columns


class RecordObjects(_Objects):
    """A decoder of objects that are records."""

    hint = " (to send whole objects as values, use --format lines or --key-field)"

    def __init__(self, unit: str) -> None:
        super().__init__(_RecordIn, unit)

    def __call__(self, pieces: list[bytes], first: int) -> Columns:
        _, numbers, records, fault = self.decode(pieces, first)
        values, bad_value = self.bytes_column([record.value for record in records], numbers, "value")
        keys, bad_key = self.bytes_column([record.key for record in records], numbers, "key")
        headers, bad_header = self._headers(records, numbers)
        whole, bad = min(
            ((len(values), bad_value), (len(keys), bad_key), (len(headers), bad_header)), key=lambda column: column[0]
        )
        del values[whole:], keys[whole:], headers[whole:], records[whole:]
        return Columns(
            values,
            keys if any(key is not None for key in keys) else None,
            _unless_none([None if record.timestamp == -1 else record.timestamp for record in records]),
            headers if any(headers) else None,
            _unless_none([record.partition for record in records]),
            bad or fault,
        )

    def _headers(self, records: list[_RecordIn], numbers: list[int]) -> tuple[list[Headers], InvalidRequest | None]:
        found: list[Headers] = []
        for record, number in zip(records, numbers, strict=True):
            if not record.headers:
                found.append(())
                continue
            pairs = (
                list(record.headers.items())
                if isinstance(record.headers, dict)
                else [(header.key, header.value) for header in record.headers]
            )
            contents, bad = self.bytes_column([raw for _, raw in pairs], [number] * len(pairs), "header")
            if bad is not None:
                return found, bad
            found.append([(name, content) for (name, _), content in zip(pairs, contents, strict=True)])
        return found, None


def _unless_none(entries: list[int | None]) -> list[int | None] | None:
    return None if entries.count(None) == len(entries) else entries
