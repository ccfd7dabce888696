"""What compaction does to one batch: which keys it holds, and the batch again with only some of its records.

The batch that comes out takes up the same offsets as the one that went in (S2): base offset, last offset delta and the
producer's fields stay, what is left are holes. A batch without any record left stays as an empty one, for the offsets
and the producer's sequence that it stands for. Where nobody asks for that sequence any more a `hole` may stand for the
offsets alone, of any number of such batches. Timestamps are true of what is left.

A *delete horizon* (KIP-534) is when the tombstones of a batch may go. It takes the place of the base timestamp, and
timestamp deltas count from it.

Columns are filtered by Arrow from `ARROW_FROM` records on; below, and for integers, by calls that take whole columns.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from itertools import compress as select
from itertools import repeat
from operator import is_, sub

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
    """Whether any record's key is null."""
    found = batch.columns
    if found is None or not batch.header.record_count:
        return False
    return found.keys is None or (found.keys.validity is not None and None in list(batch.keys()))


def tombstones(batch: RecordBatch) -> list[bool]:
    """For each record, whether its value is null."""
    found = batch.columns
    if found is None:
        return []
    if found.values.validity is None:
        return [False] * batch.header.record_count
    return list(map(is_, batch.values(), repeat(None)))


def keep_records(batch: RecordBatch, keep: Sequence[bool], *, delete_horizon_ms: int = -1) -> bytes | None:
    """The batch with only the records whose flag is set. `delete_horizon_ms`: when its tombstones may go; -1: never.

    None where no batch may be that large: a delete horizon makes room for timestamps that needed none before.
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
    """The batch with this header again, without any of its records: an empty one, whatever was in it."""
    header = replace(header, record_count=0)
    header.attributes &= ~(_CODEC_BITS | _DELETE_HORIZON)
    return seal(header, _no_records())


def is_hole(header: BatchHeader) -> bool:
    """Whether this batch stands for its offsets and nothing else: no record, and no producer's sequence."""
    return not (header.record_count or header.is_control) and header.producer_epoch < 0


def hole(
    base_offset: int, end_offset: int, leader_epoch: int, max_timestamp: int, greatest_id: int = NO_PRODUCER_ID
) -> bytes:
    """A batch without records, and of no producer, that stands for the offsets [base_offset, end_offset). Any part of
    it is a hole as well. `max_timestamp` is milliseconds, that of what was there; -1: none. `greatest_id`: of the
    producers of whom nothing else in the log tells; -1: none."""
    delta = end_offset - base_offset - 1
    times = max_timestamp, max_timestamp
    header = BatchHeader(base_offset, 0, leader_epoch, MAGIC, 0, 0, delta, *times, greatest_id, -1, -1, 0)
    return seal(header, _no_records())


def _no_records() -> list[Buffer]:
    return columns.join_payload(None, None, columns.pack_binary([]), None)


def _stamp_times(header: BatchHeader, times: list[int], delete_horizon_ms: int) -> bytes | None:
    """Base and max timestamp of what is left go into the header; the deltas that follow from them, None: all 0."""
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
