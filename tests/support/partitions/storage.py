"""Small stamped batches, logs that tests drive by hand, and failing calls of the operating system."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from partitions.files.durable import alone
from partitions.log.log import PartitionLog
from partitions.log.tail import FetchCache
from partitions.producers.snapshots import ReplayedState
from partitions.recovery.outcome import Recovery
from raftlog.config import TopicConfig
from raftlog.ports import Buffer, Disk, FileRegion, Part
from raftlog.records.batch import BatchHeader, ControlKind, encode, encode_control, parse_header, split_batches, stamp

PATH = "partitions/p"


@dataclass(frozen=True)
class Batch:
    """A stamped batch: the log's argument, and its bytes on disk."""

    header: BatchHeader
    buffers: list[Buffer]

    @property
    def data(self) -> bytes:
        return b"".join(self.buffers)

    @property
    def end_offset(self) -> int:
        return self.header.end_offset


def batch(
    base_offset: int, *, count: int = 1, epoch: int = 0, size: int = 20, time: int = 1_000, text: str = ""
) -> Batch:
    """`count` records of `size` bytes (or `text`); timestamps are `time`, `time` + 1, …"""
    values: list[bytes | None] = [
        (f"{text or 'v'}-{base_offset + number}-{epoch}-").encode().ljust(size, b".") for number in range(count)
    ]
    data = encode(values, timestamps_ms=[time + number for number in range(count)], base_timestamp_ms=time)
    buffers = stamp(data, base_offset, epoch)
    return Batch(parse_header(b"".join(buffers)), buffers)


def marker(base_offset: int, *, epoch: int = 0, time: int = 1_000) -> Batch:
    """A control batch that names its own offset and epoch."""
    data = encode_control(ControlKind.COMMIT, [(base_offset, 0, epoch)], base_timestamp_ms=time)
    buffers = stamp(data, base_offset, epoch)
    return Batch(parse_header(b"".join(buffers)), buffers)


def append(log: PartitionLog, *, count: int = 1, epoch: int = 0, size: int = 20, time: int = 1_000) -> Batch:
    """Append one batch at the log's end."""
    made = batch(log.log_end_offset, count=count, epoch=epoch, size=size, time=time)
    log.append(made.header, made.buffers)
    return made


def settle(log: PartitionLog) -> None:
    """Run jobs until nothing is due."""
    while (job := log.take_job()) is not None:
        job.run()
        log.job_done(job, None)


def recover_log(
    disk: Disk,
    path: str,
    config: TopicConfig,
    *,
    clean_shutdown: bool,
    producers: ReplayedState | None = None,
    cache: FetchCache | None = None,
) -> tuple[PartitionLog, Recovery]:
    """A log alone on its disk: what was read is fsynced before this returns."""
    opening = PartitionLog.open_steps(
        disk, path, config, clean_shutdown=clean_shutdown, producers=producers, cache=cache, shared=False
    )
    return alone(disk, opening)


def open_log(
    disk: Disk,
    config: TopicConfig | None = None,
    *,
    clean: bool = False,
    path: str = PATH,
    cache: FetchCache | None = None,
) -> PartitionLog:
    return recover_log(disk, path, config or TopicConfig(), clean_shutdown=clean, cache=cache)[0]


def part_bytes(part: Part) -> bytes:
    """A part's bytes; a region is read and released, as a transport would."""
    if isinstance(part, FileRegion):
        data = part.file.pread(part.length, part.position)
        part.release()
        assert len(data) == part.length
        return data
    return bytes(part)


def read_batches(log: PartitionLog, start: int, end: int | None = None, max_bytes: int = 1 << 20) -> list[bytes]:
    """All batches from `start` on, in as many reads as needed, cold or not."""
    found: list[bytes] = []
    offset, end = start, log.log_end_offset if end is None else end
    while offset < end:
        piece = log.read(offset, end, max_bytes)  # type: ignore[arg-type]
        if piece.load is not None:
            piece = piece.load()
        data = b"".join(map(part_bytes, piece.parts))
        assert len(data) == piece.length
        batches = [bytes(one) for one in split_batches(data)]
        assert len(batches) == piece.batch_count
        if not batches:
            break
        assert parse_header(batches[0]).base_offset == piece.first_offset
        assert parse_header(batches[-1]).end_offset == piece.next_offset
        found += batches
        offset = piece.next_offset
    return found


def failing(number: int) -> Callable[..., Any]:
    """A call of the operating system that always fails with this `errno`."""

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail
