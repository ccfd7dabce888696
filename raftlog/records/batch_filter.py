"""Compaction of one batch: the keys that it holds, and a copy with only some of its records.

The resulting batch covers the same offsets as the original (S2): base offset, last offset delta and the producer's
fields stay, and removed records leave holes. A batch without records remains as an empty one, for its offsets and its
producer's sequence. When the sequence is no longer needed, one `hole` may stand for the offsets of any number of such
batches. Timestamps describe the remaining records.

A *delete horizon* (KIP-534) is the time from which a batch's tombstones may be removed. It replaces the base timestamp,
and timestamp deltas are relative to it.

Arrow filters columns from `ARROW_FROM` records on. Smaller ones, and integers, are filtered by calls on whole columns.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import compress as select
from itertools import repeat
from operator import is_, sub

from msgspec.structs import replace

from raftlog.config import MAX_BATCH_BYTES, MAX_BATCH_DECOMPRESSED_BYTES
from raftlog.model import NO_PRODUCER_ID
from raftlog.ports import Buffer

from . import columns
from .batch import ARROW_FROM, RecordBatch
from .columns import BinaryColumn
from .compression import compress
from .header import MAGIC, BatchHeader, Codec, seal

_CODEC_BITS = 0x07
_DELETE_HORIZON = 0x40


def has_record_without_key(batch: RecordBatch) -> bool:
    """Return whether any record's key is null."""
    found = batch.columns
    if found is None or not batch.header.record_count:
        return False
    return found.keys is None or (found.keys.validity is not None and None in list(batch.keys()))


def tombstones(batch: RecordBatch) -> list[bool]:
    """Return for each record whether its value is null."""
    found = batch.columns
    if found is None:
        return []
    if found.values.validity is None:
        return [False] * batch.header.record_count
    return list(map(is_, batch.values(), repeat(None)))


def keep_records(batch: RecordBatch, keep: Sequence[bool], *, delete_horizon_ms: int = -1) -> bytes | None:
    """Return the batch with only the records whose flag is set.

    `delete_horizon_ms` is the time from which its tombstones may be removed; -1: never.

    Returns None if the result would exceed the maximum batch size: a delete horizon can add timestamp deltas that were
    not needed before.
    """
    kept = sum(keep)
    if not kept:
        return without_records(batch.header)
    header = replace(batch.header, record_count=kept)
    header.attributes &= ~(_CODEC_BITS | _DELETE_HORIZON)
    deltas = _stamp_times(header, list(select(batch.timestamps_ms(), keep)), delete_horizon_ms)
    payload = _payload(batch, keep, deltas)
    if sum(map(len, payload)) > MAX_BATCH_DECOMPRESSED_BYTES:
        return None
    for codec in dict.fromkeys((batch.header.codec, Codec.ZSTD)):
        packed = payload if codec == Codec.NONE else [compress(codec, b"".join(payload))]
        written = seal(replace(header, attributes=header.attributes | codec), packed)
        if len(written) <= MAX_BATCH_BYTES:
            return written
    return None


def without_records(header: BatchHeader) -> bytes:
    """Return an empty batch with this header."""
    header = replace(header, record_count=0)
    header.attributes &= ~(_CODEC_BITS | _DELETE_HORIZON)
    return seal(header, _no_records())


def is_hole(header: BatchHeader) -> bool:
    """Return whether this batch stands only for its offsets: it has no record and no producer's sequence."""
    return not (header.record_count or header.is_control) and header.producer_epoch < 0


def hole(
    base_offset: int, end_offset: int, leader_epoch: int, max_timestamp: int, greatest_id: int = NO_PRODUCER_ID
) -> bytes:
    """Return a batch without records and producer that covers the offsets [base_offset, end_offset).

    Any part of it is a hole as well. `max_timestamp` is that of the removed records, in milliseconds; -1: none.
    `greatest_id` is the greatest id of the producers that appear nowhere else in the log; -1: none.
    """
    delta = end_offset - base_offset - 1
    times = max_timestamp, max_timestamp
    header = BatchHeader(base_offset, 0, leader_epoch, MAGIC, 0, 0, delta, *times, greatest_id, -1, -1, 0)
    return seal(header, _no_records())


def _no_records() -> list[Buffer]:
    return columns.join_payload(None, None, columns.pack_binary([]), None)


def _stamp_times(header: BatchHeader, times: list[int], delete_horizon_ms: int) -> bytes | None:
    """Write base and max timestamp of the remaining records into the header. Return the deltas; None if all are 0."""
    if delete_horizon_ms >= 0:
        header.attributes |= _DELETE_HORIZON
        header.base_timestamp = delete_horizon_ms
    elif not header.log_append_time:
        header.base_timestamp = times[0]
    if header.log_append_time:
        return None
    header.max_timestamp = max(times)
    deltas = array("q", map(sub, times, repeat(header.base_timestamp)))
    return deltas.tobytes() if any(deltas) else None


def _payload(batch: RecordBatch, keep: Sequence[bool], timestamp_deltas: bytes | None) -> list[Buffer]:
    found = batch.columns
    assert found is not None
    base = batch.header.base_offset
    deltas = array("i", map(sub, select(batch.offsets(), keep), repeat(base)))
    dense = deltas[-1] == len(deltas) - 1
    pieces = columns.join_payload(
        timestamp_deltas,
        None if found.keys is None else _keep_binary(found.keys, keep, "keys", nil_if_all_null=True),
        _keep_binary(found.values, keep, "values"),
        None if found.headers is None else columns.pack_headers(list(select(batch.headers(), keep))),
    )
    if not dense:
        pieces[1:2] = columns.pack_buffer(deltas.tobytes())
    return pieces


def _keep_binary(
    column: BinaryColumn, keep: Sequence[bool], name: str, *, nil_if_all_null: bool = False
) -> list[Buffer]:
    count = len(keep)
    if count < ARROW_FROM:
        entries = list(select(columns.read_binary(column, count, name), keep))
        return columns.pack_binary(entries, nil_if_all_null=nil_if_all_null)
    import pyarrow as pa

    from . import arrow as record_arrow

    kept = record_arrow.binary_array(column, count, name).filter(pa.array(keep, pa.bool_()))
    return record_arrow.pack_binary(kept, nil_if_all_null=nil_if_all_null)
