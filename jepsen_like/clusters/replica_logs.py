"""Reads the replicas of a stopped node from its data folder: batches, not records.

Segments are read with the record batch library, in the order of their names, whole batches at a time; indexes and
everything else that is derived from segments is skipped. The log ends at a torn tail. `docs/log-format.md` has the
format.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from pathlib import Path

from jepsen_like.checkers.replicas import StoredBatch, StoredLog
from raftlog.errors import CorruptBatch
from raftlog.records.batch import HEADER_BYTES, BatchHeader, check_crc, parse_header
from raftlog.records.control import decode_control

_FOLDER = re.compile(r"([0-9a-f]{32})-(\d+)")
_SEGMENT = re.compile(r"(\d{20})\.log")
BATCHES_MAX = 2_000_000
"""Limit for one replica: about 300 MB of memory."""


class TooLarge(Exception):
    """A log has more batches than can be compared."""


def stored_logs(data_folder: Path) -> Iterator[tuple[tuple[str, int], StoredLog]]:
    """Yield ((topic id, partition), log) of every replica in a node's data folder. Raises `TooLarge`, `OSError`."""
    folder = data_folder / "partitions"
    for replica in sorted(folder.iterdir()) if folder.is_dir() else ():
        match = _FOLDER.fullmatch(replica.name)
        if match is not None and replica.is_dir():
            yield (match[1], int(match[2])), read_log(replica)


def read_log(replica: Path) -> StoredLog:
    """Read one replica. Data behind damage that hides the next batch's position is not read."""
    batches: list[StoredBatch] = []
    segments = sorted(path for path in replica.iterdir() if _SEGMENT.fullmatch(path.name))
    for segment in segments:
        for batch in _batches(segment):
            batches.append(batch)
            if len(batches) > BATCHES_MAX:
                raise TooLarge(f"{replica} has more than {BATCHES_MAX} batches")
    start = int(segments[0].name[:20]) if segments else 0
    first = next(_batches(segments[0]), None) if segments else None
    # If the first segment is unreadable, the log still begins at the offset in its name.
    return StoredLog(first.base_offset if first is not None else start, batches)


def last_batch(segment: Path) -> tuple[int, int] | None:
    """Return the byte range of the last whole batch of a segment, or None if it has none."""
    found = None
    for position, end, _ in _places(segment):
        found = position, end
    return found


def _batches(segment: Path) -> Iterator[StoredBatch]:
    return (batch for _, _, batch in _places(segment))


def _places(segment: Path) -> Iterator[tuple[int, int, StoredBatch]]:
    """Yield (position, end, batch) up to the end or the first unreadable byte."""
    with segment.open("rb") as file:
        if not segment.stat().st_size:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            position = 0
            while position + HEADER_BYTES <= len(content):
                try:
                    header = parse_header(content[position : position + HEADER_BYTES])
                except CorruptBatch:
                    return
                end = position + header.total_bytes
                if end > len(content):
                    return
                yield position, end, _stored(header, content[position:end])
                position = end


def _stored(header: BatchHeader, raw: bytes) -> StoredBatch:
    try:
        check_crc(raw)
        sound = True
    except CorruptBatch:
        sound = False
    ended = _ended(header, raw) if sound and header.is_control else ()
    return StoredBatch(
        header.base_offset,
        header.end_offset,
        header.leader_epoch,
        header.crc,
        sound,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        ended,
    )


def _ended(header: BatchHeader, raw: bytes) -> tuple[tuple[int, int], ...]:
    """Return the transactions that a marker ends; empty if the batch is sound but no valid marker.

    Replicas are compared by this value.
    """
    try:
        return tuple(
            (one.producer_id, one.producer_epoch) for one in decode_control(header, raw[HEADER_BYTES:]).entries
        )
    except CorruptBatch:
        return ()
