"""Splitting of Arrow batches of rows by topic and partition. It performs no I/O.

Rows keep their order within each topic and partition. A column of strings already holds UTF-8 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from raftlog.config import check_topic_name
from raftlog.errors import InvalidRequest

from .columns import SinkColumns

if TYPE_CHECKING:
    import pyarrow

Pairs = list[tuple[str, bytes | None]]


class Rows(NamedTuple):
    """The rows for one topic and partition (None: by key, and any partition for rows without a key)."""

    topic: str
    partition: int | None
    values: pyarrow.Array
    keys: pyarrow.Array | None
    headers: pyarrow.Array | None
    """None if no row has headers."""

    @property
    def size(self) -> int:
        return len(self.values)


def split(batch: pyarrow.RecordBatch, columns: SinkColumns, topic: str | None) -> Iterator[Rows]:
    """Split a batch. `topic`: the option's value for all rows. Raises `InvalidRequest` for a row without a topic."""
    if not batch.num_rows:
        return
    if topic is not None:
        yield from _by_partition(batch, columns, topic)
        return
    assert columns.topic is not None
    for name in batch.column(columns.topic).unique().to_pylist():
        if name is None:
            raise InvalidRequest("invalid_record", "a row has no topic: its column topic is null")
        yield from _by_partition(_where(batch, columns.topic, name), columns, check_topic_name(name))


def _by_partition(batch: pyarrow.RecordBatch, columns: SinkColumns, topic: str) -> Iterator[Rows]:
    if columns.partition is None:
        yield _rows(batch, columns, topic, None)
        return
    for partition in batch.column(columns.partition).unique().to_pylist():
        yield _rows(_where(batch, columns.partition, partition), columns, topic, partition)


def _where(batch: pyarrow.RecordBatch, column: int, value: object) -> pyarrow.RecordBatch:
    import pyarrow.compute as pc

    found = batch.column(column)
    same = found.is_null() if value is None else pc.fill_null(pc.equal(found, value), False)
    return batch if pc.all(same).as_py() else batch.filter(same)


def _rows(batch: pyarrow.RecordBatch, columns: SinkColumns, topic: str, partition: int | None) -> Rows:
    keys = None if columns.key is None else batch.column(columns.key)
    if keys is not None and keys.null_count == len(keys):
        keys = None
    headers = None if columns.headers is None else batch.column(columns.headers)
    if headers is not None and not len(headers.flatten()):
        headers = None
    return Rows(topic, partition, batch.column(columns.value), keys, headers)


def records(rows: Rows) -> Iterator[tuple[bytes | None, bytes | None, Pairs]]:
    """Yield (value, key, headers) of each row, if some have headers. Raises `InvalidRequest` for a header without a
    name."""
    assert rows.headers is not None
    keys = [None] * rows.size if rows.keys is None else listed(rows.keys)
    for value, key, pairs in zip(listed(rows.values), keys, rows.headers.to_pylist(), strict=True):
        yield value, key, [_pair(one) for one in pairs or ()]


def listed(column: pyarrow.Array) -> list[bytes | None]:
    """Return a column as a list of bytes."""
    import pyarrow as pa

    found: list[bytes | None] = column.cast(pa.binary()).to_pylist()
    return found


def _pair(header: dict[str, Any] | None) -> tuple[str, bytes | None]:
    if header is None or header["key"] is None:
        raise InvalidRequest("invalid_record", "a row has a header without a key: it is null")
    return header["key"], header["value"]
