"""Logs of keyed records, compacted by hand, and the dictionary that must be equivalent to them."""

from __future__ import annotations

from collections.abc import Sequence

from partitions.compaction.plan import OffsetMap
from partitions.compaction.run import CleanedSegment, Finished
from partitions.log.log import PartitionLog
from raftlog.config import TopicConfig
from raftlog.model import Offset
from raftlog.ports import Disk
from raftlog.records.batch import Codec, RecordBatch, encode, parse_header, stamp

from .storage import open_log, read_batches, settle

COMPACTED = TopicConfig(
    segment_bytes=1024, index_interval_bytes=100, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0
)

Entry = tuple[bytes | None, bytes | None]
"""Key and value."""


def append_records(
    log: PartitionLog,
    entries: Sequence[Entry],
    *,
    time: int = 1_000,
    epoch: int = 0,
    codec: Codec = Codec.NONE,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> None:
    """Append one batch at the log's end; timestamps are `time`, `time` + 1, …"""
    data = encode(
        [value for _, value in entries],
        keys=[key for key, _ in entries],
        timestamps_ms=[time + number for number in range(len(entries))],
        base_timestamp_ms=time,
        codec=codec,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
    )
    buffers = stamp(data, log.log_end_offset, epoch)
    log.append(parse_header(b"".join(buffers)), buffers)


def compact(
    log: PartitionLog, *, high_watermark: int | None = None, now_ms: int = 10_000, entries_max: int | None = None
) -> bool:
    """Run one whole pass, as the shell does; return whether there was one to run."""
    bound = log.stable_end_offset if high_watermark is None else Offset(high_watermark)
    plan = log.compaction_plan(bound, now_ms)
    if plan is None:
        return False
    run = log.compaction_run(plan, now_ms)
    if entries_max is not None:
        run.latest = OffsetMap(entries_max)
    while not isinstance(piece := run.next_piece(), Finished):
        if isinstance(piece, CleanedSegment):
            assert log.replace_segment(piece)
            log.check_invariants()
    run.clear_away()
    log.compacted(run, piece.end)
    settle(log)
    return True


def seal(log: PartitionLog) -> None:
    """Roll the active segment, so that everything that was appended is in sealed segments."""
    settle(log)
    if log.segments.active.size:
        log.segments.roll(log.log_end_offset)
    settle(log)


def records(log: PartitionLog, start: int | None = None) -> list[tuple[int, bytes | None, bytes | None]]:
    """(offset, key, value) of all records; the batches must follow one another without a gap."""
    found = []
    offset = log.log_start_offset if start is None else start
    expected: int | None = None
    for data in read_batches(log, offset):
        batch = RecordBatch(data)
        batch.check()
        assert expected in (None, batch.header.base_offset), "batches are dense"
        expected = batch.header.end_offset
        found += [
            (at, key, value)
            for at, key, value in zip(batch.offsets(), batch.keys(), batch.values(), strict=True)
            if at >= offset
        ]
    assert expected in (None, log.log_end_offset)
    return found


def table(log: PartitionLog) -> dict[bytes | None, bytes]:
    """The final table of a reader of the whole log."""
    state: dict[bytes | None, bytes] = {}
    for _, key, value in records(log):
        if value is None:
            state.pop(key, None)
        else:
            state[key] = value
    return state


def reopen(disk: Disk, config: TopicConfig = COMPACTED) -> PartitionLog:
    return open_log(disk, config)
