"""Packing of columns of records into record batches, one or more for each partition.

A record goes to the partition that it names; otherwise to the one that the request names; otherwise, with a key, to the
partition that Kafka's default partitioner chooses; otherwise to the request's sticky partition. Records of one
partition keep their order, and no batch exceeds the topic's `max.message.bytes`.

Pure, and safe to run in a thread.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TypeVar

import msgspec

from http_api.web.topics import partition_numbered
from raftlog.config import MAX_REQUEST_BYTES
from raftlog.errors import InvalidRequest
from raftlog.model import TopicRecord
from raftlog.partitioner import partitions_for_keys
from raftlog.records.batch import encode
from raftlog.wire import MAX_PARTITIONS_PER_REQUEST

from .identities import BatchIdentity, Identity, Nobody
from .parse import RecordColumns, RecordHeaders

T = TypeVar("T")

BATCH_OVERHEAD = 256
"""An upper bound of a batch's bytes besides its records: the header, the columns' marks and lengths, the last
offsets."""
RECORD_OVERHEAD = 24
"""An upper bound of a record's bytes besides its content: a timestamp, three 32-bit offsets and some bits."""
HEADER_OVERHEAD = 10
"""The same for a header: two 32-bit offsets and some bits."""


class PackedBatch(msgspec.Struct, frozen=True):
    """A batch for one partition, with the numbers of the request's records in it, in order."""

    partition: int
    records: Sequence[int]
    batch: bytes
    idempotency_key: str = ""
    """The text of which the batch's producer id is the hash, if it has one."""


class Target(msgspec.Struct, frozen=True):
    """The destination of a request's records."""

    topic: TopicRecord
    max_batch_bytes: int
    partition: int | None
    """The partition of records that name none."""
    sticky: int
    """The partition of records that have no key either."""
    max_ahead_ms: int | None = None
    """The maximum time by which a timestamp may be ahead of the clock; None for no limit."""


_NOBODY = Nobody()


def pack(columns: RecordColumns, target: Target, now_ms: int, identity: Identity = _NOBODY) -> list[PackedBatch]:
    """Return all batches, partition by partition. Raises `InvalidRequest`: `unknown_partition`, `batch_too_large` for a
    record that fits no batch, `body_too_large` if the records grow too much when packed, `timestamp_out_of_range`."""
    _check_timestamps(columns.timestamps_ms, target, now_ms)
    packed: list[PackedBatch] = []
    for partition, indexes in _by_partition(columns, target).items():
        sizes = [_size_at(columns, index) for index in indexes]
        for number, (start, end) in enumerate(_cuts(sizes, indexes, target.max_batch_bytes - BATCH_OVERHEAD)):
            chosen, whose = indexes[start:end], identity.of_batch(number)
            batch = _encode(columns, chosen, now_ms, whose)
            packed.append(PackedBatch(partition, chosen, batch, whose.idempotency_key))
    if len(packed) > MAX_PARTITIONS_PER_REQUEST:
        raise InvalidRequest(
            "body_too_large", f"the records need {len(packed)} batches, more than a request may contain"
        )
    total = sum(len(batch.batch) for batch in packed)
    if total > MAX_REQUEST_BYTES:
        raise InvalidRequest(
            "body_too_large", f"the records need {total} bytes of batches, more than a request may contain"
        )
    return packed


def _check_timestamps(timestamps_ms: Sequence[int | None], target: Target, now_ms: int) -> None:
    """Check timestamps as each leader does for its own batch: by then other leaders' batches might already be
    appended."""
    if target.max_ahead_ms is None:
        return
    latest = max((timestamp for timestamp in timestamps_ms if timestamp is not None), default=now_ms)
    if latest > now_ms + target.max_ahead_ms:
        raise InvalidRequest(
            "timestamp_out_of_range",
            f"timestamp of record {timestamps_ms.index(latest)} is {latest - now_ms} ms ahead of the clock; "
            f"{target.max_ahead_ms} are allowed (message.timestamp.after.max.ms)",
        )


def _by_partition(columns: RecordColumns, target: Target) -> dict[int, Sequence[int]]:
    """Return partition → numbers of its records, in order."""
    count = len(columns)
    partitions = _partitions(columns, target)
    first = partitions[0]
    if partitions.count(first) == count:
        return {first: range(count)}
    groups: dict[int, list[int]] = {}
    for index, partition in enumerate(partitions):
        groups.setdefault(partition, []).append(index)
    return dict(groups)


def _partitions(columns: RecordColumns, target: Target) -> list[int]:
    """Return the partition of every record."""
    count, topic = len(columns), target.topic
    default = target.sticky if target.partition is None else target.partition
    partitions = [default] * count
    if target.partition is None and columns.keys.count(None) < count:
        keyed = [index for index, key in enumerate(columns.keys) if key is not None]
        hashed = partitions_for_keys([key for key in columns.keys if key is not None], topic.partition_count)
        for index, partition in zip(keyed, hashed, strict=True):
            partitions[index] = partition
    if columns.partitions.count(None) < count:
        partitions = [
            partition if named is None else named
            for named, partition in zip(columns.partitions, partitions, strict=True)
        ]
    for partition in (min(partitions), max(partitions)):
        partition_numbered(topic, partition)
    return partitions


def _size_at(columns: RecordColumns, index: int) -> int:
    """Return an upper bound of the record's size in a batch."""
    size = RECORD_OVERHEAD + len(columns.values[index] or b"") + len(columns.keys[index] or b"")
    headers = columns.headers[index]
    return size + _headers_size(headers) if headers else size


def _headers_size(headers: RecordHeaders) -> int:
    return sum(HEADER_OVERHEAD + len(name.encode()) + len(value or b"") for name, value in headers)


def _cuts(sizes: list[int], indexes: Sequence[int], room: int) -> list[tuple[int, int]]:
    """Yield ranges of records that each fit into a batch."""
    ends = list(accumulate(sizes))
    cuts, start, before = [], 0, 0
    while start < len(ends):
        end = bisect_right(ends, before + room, lo=start)
        if end == start:
            raise InvalidRequest(
                "batch_too_large",
                f"record {indexes[start]} takes about {sizes[start]} bytes; a batch of the topic has room for {room}",
            )
        cuts.append((start, end))
        start, before = end, ends[end - 1]
    return cuts


def _encode(columns: RecordColumns, chosen: Sequence[int], now_ms: int, whose: BatchIdentity) -> bytes:
    """Encode a batch; columns that are empty for every record are left out."""
    timestamps = _pick(columns.timestamps_ms, chosen)
    keys = _pick(columns.keys, chosen)
    headers = _pick(columns.headers, chosen)
    count = len(chosen)
    return encode(
        _pick(columns.values, chosen),
        keys=None if keys.count(None) == count else keys,
        timestamps_ms=None
        if timestamps.count(None) == count
        else [now_ms if timestamp is None else timestamp for timestamp in timestamps],
        headers=headers if any(headers) else None,
        base_timestamp_ms=now_ms,
        producer_id=whose.producer_id,
        producer_epoch=whose.producer_epoch,
        base_sequence=whose.base_sequence,
        transactional=whose.transactional,
    )


def _pick(column: list[T], chosen: Sequence[int]) -> list[T]:
    if isinstance(chosen, range):
        return column[chosen.start : chosen.stop]
    return [column[index] for index in chosen]
