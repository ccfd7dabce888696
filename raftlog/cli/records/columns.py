"""Conversion of pieces of input, one for each record, to columns of records. `input.py` divides the input.

An object is a record in the form of the HTTP API and of `consume`: `{"value": ..., "key": ..., "timestamp": ...,
"headers": ..., "partition": ...}`. With a key field an object is itself a value: it is stored as a whole, and that
field is its key.

An error does not affect the records before it: `Columns.fault` stands for the rest of the input.

This module is pure.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from raftlog.errors import InvalidRequest
from raftlog.json_values import RecordIn, string_column, value_bytes

T = TypeVar("T")
Headers = Sequence[tuple[str, bytes | None]]


class Columns(msgspec.Struct):
    """Some records, and the error that prevents reading the rest of the input, if any."""

    values: list[bytes | None] = []
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

    def rows(self) -> Iterator[tuple[bytes | None, bytes | None, int | None, Headers | None, int | None]]:
        """Yield value, key, timestamp, headers and partition of each record."""
        others = (self.keys, self.timestamps_ms, self.headers, self.partitions)
        return zip(self.values, *(itertools.repeat(None) if one is None else one for one in others), strict=False)

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


class _RecordIn(RecordIn, gc=False, forbid_unknown_fields=True):
    """A record in the form of the HTTP API. `offset` and `topic`, which `consume` writes, are ignored: a copy gets its
    own."""

    timestamp: Annotated[int, Meta(ge=-1, le=2**62)] | None = None
    partition: Annotated[int, Meta(ge=0)] | None = None
    offset: int | None = None
    topic: str | None = None


_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Objects(ABC):
    """A decoder of JSON objects of one type, up to the first invalid one. Empty pieces are skipped."""

    hint = ""
    """Advice about an object of another type."""

    def __init__(self, kind: Any, unit: str) -> None:
        self._decode = msgspec.json.Decoder(kind).decode
        self._unit = unit
        """The unit that is numbered: lines or records."""

    def __call__(self, pieces: list[bytes], first: int) -> Columns:
        try:
            return self._columns(pieces, list(map(self._decode, pieces)))
        except (InvalidRequest, *_UNREADABLE):
            return self._one_by_one(pieces, first)

    def _one_by_one(self, pieces: list[bytes], first: int) -> Columns:
        """Convert the records before the first invalid one, which becomes the fault."""
        kept: list[bytes] = []
        objects: list[Any] = []
        fault = None
        for number, piece in enumerate(pieces, first):
            if not piece or piece.isspace():
                continue
            try:
                found = self._decode(piece)
                self._columns([piece], [found])
            except (InvalidRequest, *_UNREADABLE) as error:
                fault = self._fault(number, error)
                break
            kept.append(piece)
            objects.append(found)
        columns = self._columns(kept, objects)
        columns.fault = fault
        return columns

    @abstractmethod
    def _columns(self, pieces: list[bytes], objects: list[Any]) -> Columns:
        """Convert objects. Raises `InvalidRequest`."""

    def _fault(self, number: int, error: Exception) -> InvalidRequest:
        code, why = "invalid_json", str(error)
        if isinstance(error, InvalidRequest):
            code, why = error.code, error.detail
        elif isinstance(error, msgspec.ValidationError):
            code, why = "invalid_request", f"{error}{self.hint}"
        elif isinstance(error, RecursionError):
            why = "it is nested too deeply"
        return InvalidRequest(code, f"{self._unit} {number}: {why}")


class KeyedObjects(_Objects):
    """A decoder of objects that are values, with a key in one of their fields; null means no key."""

    def __init__(self, key_field: str, unit: str) -> None:
        kind = msgspec.defstruct("Keyed", [("key", msgspec.Raw)], rename={"key": key_field}, gc=False)
        super().__init__(kind, unit)
        self._field = key_field

    def _columns(self, pieces: list[bytes], objects: list[Any]) -> Columns:
        # One line each, as in `lines` and `consume --format value`; numbers keep their digits.
        values: list[bytes | None] = [
            msgspec.json.format(text, indent=-1) if b"\n" in text else text for text in pieces
        ]
        return Columns(values, _bytes_column([found.key for found in objects], self._field))


class RecordObjects(_Objects):
    """A decoder of objects that are records."""

    hint = " (to send whole objects as values, use --format lines or --key-field)"

    def __init__(self, unit: str) -> None:
        super().__init__(_RecordIn, unit)

    def _columns(self, pieces: list[bytes], objects: list[Any]) -> Columns:
        headers: list[Headers] = [
            [(name, _bytes(raw, "header")) for name, raw in record.header_pairs] if record.headers else ()
            for record in objects
        ]
        return Columns(
            _bytes_column([record.value for record in objects], "value"),
            _unless_none(_bytes_column([record.key for record in objects], "key")),
            _unless_none([None if record.timestamp == -1 else record.timestamp for record in objects]),
            headers if any(headers) else None,
            _unless_none([record.partition for record in objects]),
        )


def _bytes_column(raws: list[Any], name: str) -> list[bytes | None]:
    """Return JSON values as bytes. Raises `InvalidRequest`."""
    strings = string_column(raws)  # usually all are strings or null
    return [_bytes(raw, name) for raw in raws] if strings is None else strings


def _bytes(raw: Any, name: str) -> bytes | None:
    try:
        return value_bytes(bytes(raw))
    except InvalidRequest as error:
        raise InvalidRequest(error.code, f"{name}: {error.detail}") from None


def _unless_none(entries: list[T | None]) -> list[T | None] | None:
    return None if entries.count(None) == len(entries) else entries
