"""Whole columns of records: validated, split by partition and into batches, with minimal Python work per record.

Lists join the open batches. pyarrow arrays become batches of their own, as slices of the caller's memory, unless they
are small; then they are converted to lists.

The work is done in pieces, and between pieces the event loop runs, so a call with a million records does not block it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from operator import index
from typing import Any, TypeVar

from raftlog.client.cluster.metadata import check_partition
from raftlog.config import KIB
from raftlog.errors import InvalidRequest, RetriableError
from raftlog.partitioner import partitions_for_keys
from raftlog.records.columns import MAX_TIMESTAMP, NO_TIMESTAMP, timestamp_refused
from raftlog.slices import turns

from .batch import (
    KEY_ROW_BYTES,
    ROWS_A_LOOK,
    TIMESTAMP_ROW_BYTES,
    UNASSIGNED,
    VALUE_ROW_BYTES,
    Columns,
    payload_lengths,
    row_bytes_of,
)
from .delivery import DeliveryFuture
from .sender import Sender

T = TypeVar("T")
_KINDS = {bytes, type(None)}
"""Types that lists may contain."""

PIECE_ROWS = 8_192
"""Records processed in one piece, which bounds the memory for bookkeeping."""
LISTED_ROWS = 4_096
"""The same for converting Arrow columns to lists, which takes a microsecond per entry."""
ARROW_ROWS = 65_536
FEW_BYTES = 16 * KIB
"""Size below which Arrow columns join the open batch, in bytes."""


def is_arrow(column: Any) -> bool:
    """Whether this is a pyarrow array; does not import pyarrow."""
    return type(column).__module__.partition(".")[0] == "pyarrow"


async def gradually(rows: int, step: int, work: Callable[[slice], T]) -> list[T]:
    """Return the results of `work` for each slice of the rows; yield to the event loop in between."""
    return [work(part) async for part in turns(rows, step)]


async def check_columns(values: Any, keys: Any, timestamps: Any) -> int:
    """Validate the columns, and return the size of the largest record in bytes.

    The size is known for lists only: -1 if a column is an Arrow array. Raises `InvalidRequest` if lengths differ, and
    `TypeError` if a list contains anything but bytes and None.
    """
    for name, column in (("keys", keys), ("timestamps", timestamps)):
        if column is not None and len(column) != len(values):
            raise InvalidRequest("invalid_request", f"{len(column)} {name} for {len(values)} values")
    lists = {"values": values} if keys is None else {"values": values, "keys": keys}
    lists = {name: column for name, column in lists.items() if not is_arrow(column)}
    if not lists:
        return -1
    looks = await gradually(len(values), PIECE_ROWS, lambda part: _look(lists, part))
    for name in lists:
        others = set().union(*(kinds[name] for kinds, _ in looks)) - _KINDS
        if others:
            names = ", ".join(sorted(kind.__name__ for kind in others))
            raise TypeError(f"{name} must be bytes or None, not {names}")
    whole = "values" in lists and len(lists) == 1 + (keys is not None)
    return max((largest for _, largest in looks), default=0) if whole else -1


def _look(lists: Mapping[str, Sequence[Any]], part: slice) -> tuple[dict[str, set[type]], int]:
    """Return the types in these rows of each column, and the size of the largest row, if all entries have one.

    All checks of a record happen while it is in the processor's cache: fetching it takes longer than the checks.
    """
    kinds: dict[str, set[type]] = {name: set() for name in lists}
    largest = 0
    stop = min(part.stop, *map(len, lists.values()))
    for start in range(part.start, stop, ROWS_A_LOOK):
        rows = [column[start : min(start + ROWS_A_LOOK, stop)] for column in lists.values()]
        found = [set(map(type, column)) for column in rows]
        for name, types in zip(lists, found, strict=True):
            kinds[name] |= types
        if all(types <= _KINDS for types in found):
            lengths = payload_lengths(rows[0], rows[1] if len(rows) > 1 else None)
            largest = max(largest, max(lengths, default=0))
    return kinds, largest


def check_largest(largest: int, limit: int) -> None:
    """Raise `InvalidRequest` (`batch_too_large`) if a single record exceeds the batch limit."""
    if largest + VALUE_ROW_BYTES + KEY_ROW_BYTES + TIMESTAMP_ROW_BYTES > limit:
        raise InvalidRequest("batch_too_large", f"a record of {largest} bytes exceeds the batch limit: {limit}")


def by_partition(columns: Columns, partition_count: int) -> list[Columns]:
    """Split records by their keys' partitions, in order.

    Records without a key stay unassigned.
    """
    keys = columns.keys
    keyed = [index for index, key in enumerate(keys) if key is not None]
    if len(keyed) < len(keys):
        partitions = [UNASSIGNED] * len(keys)
        for index, partition in zip(keyed, partitions_for_keys([keys[i] for i in keyed], partition_count), strict=True):
            partitions[index] = partition
    else:
        partitions = partitions_for_keys(keys, partition_count)
    rows_of: dict[int, list[int]] = {}
    for index, partition in enumerate(partitions):
        rows_of.setdefault(partition, []).append(index)
    return [
        Columns(
            partition,
            [columns.values[index] for index in indexes],
            [keys[index] for index in indexes],
            None if columns.timestamps is None else [columns.timestamps[index] for index in indexes],
        )
        for partition, indexes in sorted(rows_of.items())
    ]


def arrow_slices(columns: Columns) -> Iterator[Columns]:
    """Slice columns in bounded sizes, with values and keys as binary Arrow arrays (lists are converted)."""
    for start in range(0, columns.rows, ARROW_ROWS):
        part = columns.part(start, start + ARROW_ROWS)
        yield part._replace(values=_binary(part.values), keys=None if part.keys is None else _binary(part.keys))


def arrow_batches(columns: Columns, limit: int, largest: int) -> Iterator[tuple[Columns, int]]:
    """Cut a slice so that each cut has at most `limit` bytes as a batch; the number is that of its payload bytes.

    A larger record gets a cut of its own; raises `InvalidRequest` (`batch_too_large`) if it exceeds `largest`.
    """
    import pyarrow.compute as pc

    lengths = pc.binary_length(columns.values).fill_null(0)
    if columns.keys is not None:
        lengths = pc.add(lengths, pc.binary_length(columns.keys).fill_null(0))
    row = row_bytes_of(columns)
    longest = pc.max(lengths).as_py() or 0
    if longest + row > largest:
        raise InvalidRequest("batch_too_large", f"a record of {longest} bytes exceeds the batch limit: {largest}")
    average = (pc.sum(lengths).as_py() or 0) / max(1, columns.rows) + row
    start = 0
    while start < columns.rows:
        count = min(columns.rows - start, max(1, int(limit / average)))
        while (payload := pc.sum(lengths.slice(start, count)).as_py() or 0) + count * row > limit and count > 1:
            count = count * 9 // 10 if count > 10 else count - 1
        yield columns.part(start, start + count), payload
        start += count


async def milliseconds(timestamps: Any) -> list[int]:
    """Convert timestamps to a list of milliseconds since 1970. Raises `TypeError` and `InvalidRequest`."""

    def listed(part: slice) -> list[int]:
        column = timestamps[part]
        integers = _arrow_milliseconds(column) if is_arrow(column) else list(map(index, column))
        if min(integers) < NO_TIMESTAMP or max(integers) > MAX_TIMESTAMP:
            raise timestamp_refused()
        return integers

    return list(chain.from_iterable(await gradually(len(timestamps), LISTED_ROWS, listed)))


def _arrow_milliseconds(timestamps: Any) -> list[int]:
    import pyarrow as pa

    if pa.types.is_timestamp(timestamps.type):
        timestamps = timestamps.cast(pa.timestamp("ms", timestamps.type.tz), safe=False)
    if timestamps.null_count:
        raise InvalidRequest("invalid_request", "timestamps must not be null")
    integers: list[int] = timestamps.cast(pa.int64()).to_pylist()
    return integers


def _binary(column: Any) -> Any:
    import pyarrow as pa

    if not is_arrow(column):
        return pa.array(column, pa.binary())
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    return column if column.type == pa.binary() else column.cast(pa.binary())


def _listed(column: Any) -> Any:
    return _binary(column).to_pylist() if is_arrow(column) else column


async def _listed_gradually(column: Any) -> Any:
    if not is_arrow(column):
        return column
    parts = await gradually(len(column), LISTED_ROWS, lambda part: _listed(column[part]))
    return list(chain.from_iterable(parts))


class ColumnQueue:
    """Puts columns into a producer's batches, waiting for room.

    `deliveries` are those of the batches used so far.
    """

    def __init__(self, sender: Sender, topic: str, linger: float) -> None:
        """The topic must be known to the sender."""
        self.deliveries: dict[DeliveryFuture, None] = {}
        self._sender = sender
        self._topic = topic
        self._linger = linger

    async def put(self, values: Any, keys: Any, timestamps: Any, partition: int | None, largest: int) -> None:
        """Queue columns that passed `check_columns`, which returned `largest`.

        Raises `InvalidRequest`, usually before anything is queued.
        """
        accumulator = self._sender.accumulator
        count = accumulator.partition_count(self._topic)
        limit, most = accumulator.limits(self._topic)
        if partition is not None:
            partition = index(partition)
            check_partition(self._topic, partition, count)
        if timestamps is not None:
            timestamps = await milliseconds(timestamps)
        place = UNASSIGNED if partition is None else partition
        split = keys is not None and partition is None
        if (is_arrow(values) or is_arrow(keys)) and not split:
            for part in arrow_slices(Columns(place, values, keys, timestamps)):
                for cut, payload in arrow_batches(part, limit, most):
                    await self._put_arrow(cut, payload)
            return
        listed = Columns(place, await _listed_gradually(values), await _listed_gradually(keys), timestamps)
        if largest < 0:
            largest = await check_columns(listed.values, listed.keys, None)
        check_largest(largest, most)
        if not split:
            await self._put_list(listed)
            return
        async for rows in turns(listed.rows, PIECE_ROWS):
            self._sender.check_open()
            for columns in by_partition(listed.part(rows.start, rows.stop), count):
                await self._put_list(columns)

    async def _put_list(self, columns: Columns) -> None:
        start = 0
        while start < columns.rows:
            now, wall_ms = self._sender.now(), time.time_ns() // 1_000_000
            try:
                batch, taken = self._sender.accumulator.extend(self._topic, columns, start, now, wall_ms)
            except RetriableError as error:
                await self._make_room(error)
            else:
                start += taken
                await self._queued(batch.delivery)

    async def _put_arrow(self, columns: Columns, payload: int) -> None:
        if payload < FEW_BYTES:
            await self._put_list(columns._replace(values=_listed(columns.values), keys=_listed(columns.keys)))
            return
        while True:
            now, wall_ms = self._sender.now(), time.time_ns() // 1_000_000
            try:
                batch = self._sender.accumulator.add_columns(self._topic, columns, payload, now, wall_ms)
            except RetriableError as error:
                await self._make_room(error)
            else:
                await self._queued(batch.delivery)
                return

    async def _make_room(self, error: RetriableError) -> None:
        if error.code != "overloaded":
            raise error
        await self._sender.room()
        self._sender.check_open()

    async def _queued(self, delivery: DeliveryFuture) -> None:
        self.deliveries[delivery] = None
        if self._sender.accumulator.has_sealed:
            self._sender.pump()
            await asyncio.sleep(0)
        else:
            self._sender.arm(self._sender.now() + self._linger)
        self._sender.check_open()
