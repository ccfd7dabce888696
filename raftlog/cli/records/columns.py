"""Pieces of input that are a record each → columns of records. See `input.py` for how input is divided.

An object is a record as the HTTP API takes it and `consume` gives it: `{"value": ..., "key": ..., "timestamp": ...,
"headers": ..., "partition": ...}`. With a key field it is a value itself: all of it is stored, and that field is its
key.

A fault does not take back what came before it: `Columns.fault` stands for the rest of the input.

Pure.
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
    """Some records, and what keeps the rest of the input from being read, if anything does."""

    values: list[bytes | None] = field(default_factory=list)
    keys: list[bytes | None] | None = None
    """This and the others: None if no record has one."""
    timestamps_ms: list[int | None] | None = None
    headers: list[Headers] | None = None
    partitions: list[int | None] | None = None
    fault: InvalidRequest | None = None

    def __len__(self) -> int:
        return len(self.values)

    def sizes(self) -> list[int]:
        """Bytes of key and value of each record."""
        sizes = [0 if value is None else len(value) for value in self.values]
        if self.keys is None:
            return sizes
        return [size + (0 if key is None else len(key)) for size, key in zip(sizes, self.keys, strict=True)]

    def first(self, count: int) -> Columns:
        """The first `count` records."""
        return self if count == len(self) else self.take(range(count))

    def take(self, rows: Sequence[int]) -> Columns:
        """These records."""
        return Columns(
            [self.values[row] for row in rows],
            None if self.keys is None else [self.keys[row] for row in rows],
            None if self.timestamps_ms is None else [self.timestamps_ms[row] for row in rows],
            None if self.headers is None else [self.headers[row] for row in rows],
            None if self.partitions is None else [self.partitions[row] for row in rows],
        )


def rows_by_partition(partitions: Sequence[int | None]) -> dict[int | None, list[int]]:
    """Which records go where, in their order, which only counts within a partition."""
    rows: dict[int | None, list[int]] = {}
    for row, partition in enumerate(partitions):
        rows.setdefault(partition, []).append(row)
    return rows


Decode = Callable[[list[bytes], int], Columns]
"""Pieces and the number of the first (from 1) → records."""


def plain_values(pieces: list[bytes], first: int) -> Columns:
    """Every piece is a value."""
    return Columns(list(pieces))


class SeparatedKeys:
    """Key, separator, value."""

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
    """A record as the HTTP API takes it. `offset` is what `consume` wrote: a copy gets one of its own."""

    value: msgspec.Raw
    key: msgspec.Raw = NULL
    timestamp: Annotated[int, Meta(ge=-1, le=2**62)] | None = None
    headers: dict[str, msgspec.Raw] | list[_HeaderIn] | None = None
    partition: Annotated[int, Meta(ge=0)] | None = None
    offset: int | None = None


_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_decode_strings = msgspec.json.Decoder(list[str | None]).decode


class _Decoded(NamedTuple):
    """Pieces that are objects, their numbers, what they say, and why there are not more."""

    pieces: list[bytes]
    numbers: list[int]
    objects: list[Any]
    fault: InvalidRequest | None


class _Objects:
    """JSON objects of a kind; empty pieces are none."""

    hint = ""
    """What to do about an object that is not of this kind."""

    def __init__(self, kind: Any, unit: str) -> None:
        self._decode = msgspec.json.Decoder(kind).decode
        self._unit = unit
        """What is numbered: lines or records."""

    def decode(self, pieces: list[bytes], first: int) -> _Decoded:
        """Up to the first that is no object of this kind."""
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
        """JSON values as bytes, up to the first that cannot be, and why it cannot."""
        try:
            # Mostly all are strings or null: then one call decodes the column.
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
    """Objects that are values, with a key in one of their fields; null is no key."""

    def __init__(self, key_field: str, unit: str) -> None:
        kind = msgspec.defstruct("Keyed", [("key", msgspec.Raw)], rename={"key": key_field}, gc=False)
        super().__init__(kind, unit)
        self._field = key_field

    def __call__(self, pieces: list[bytes], first: int) -> Columns:
        kept, numbers, objects, fault = self.decode(pieces, first)
        # One line each, as `lines` and `consume --format value` have it; numbers keep their digits.
        values: list[bytes | None] = [msgspec.json.format(text, indent=-1) if b"\n" in text else text for text in kept]
        keys, bad = self.bytes_column([found.key for found in objects], numbers, self._field)
        columns = Columns(values[: len(keys)], keys)
        columns.fault = bad or fault
        return columns


class RecordObjects(_Objects):
    """Objects that are records."""

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
