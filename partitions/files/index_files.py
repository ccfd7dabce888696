"""The index files of a segment: read, read without blocking, or rebuilt from the batches' headers.

An index is optional. A reader checks that it is whole (CRC), belongs to the segment, and covers what it should;
otherwise it counts as absent.
"""

from __future__ import annotations

import contextlib

from raftlog.errors import DiskFailed
from raftlog.model import FilePosition, Offset
from raftlog.ports import Disk, File

from .batch_walk import Cold, HeaderWalk
from .checkpoint import DamagedFile, read_file
from .leader_epochs import LeaderEpochHistory
from .segment import OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, SegmentIndex, segment_name


def index_names(base_offset: Offset) -> tuple[str, str]:
    """Return the file names of the offset index and the time index."""
    return segment_name(base_offset, OFFSET_INDEX_SUFFIX), segment_name(base_offset, TIME_INDEX_SUFFIX)


def read_index(disk: Disk, path: str, base_offset: Offset, interval_bytes: int) -> SegmentIndex | None:
    """Return the index; None if it is absent, damaged or unreadable. Blocks.

    The caller judges how much of the segment it covers.
    """
    try:
        offsets, times = (read_file(disk, f"{path}/{name}") for name in index_names(base_offset))
    except DiskFailed:
        return None
    return _decode(base_offset, offsets, times, interval_bytes)


def read_index_cached(disk: Disk, path: str, base_offset: Offset, interval_bytes: int) -> SegmentIndex | None:
    """Return the index as `read_index` does; raise `Cold` if the files are not in memory."""
    contents: list[bytes] = []
    for name in index_names(base_offset):
        try:
            with contextlib.closing(disk.open(f"{path}/{name}")) as file:
                content = file.pread_cached(file.size(), 0)
        except FileNotFoundError:
            return None
        if content is None:
            raise Cold
        contents.append(content)
    return _decode(base_offset, contents[0], contents[1], interval_bytes)


def rebuild_index(
    file: File, base_offset: Offset, size: int, epochs: LeaderEpochHistory, interval_bytes: int
) -> SegmentIndex:
    """Build the index from the headers of the first `size` bytes. Raises `CorruptBatch`. Blocks."""
    index = SegmentIndex.empty(base_offset, interval_bytes)
    for header in HeaderWalk(file.pread, epochs, FilePosition(0), base_offset, size):
        index.add(header)
    return index


def _decode(
    base_offset: Offset, offsets: bytes | None, times: bytes | None, interval_bytes: int
) -> SegmentIndex | None:
    if offsets is None or times is None:
        return None
    try:
        return SegmentIndex.decode(base_offset, offsets, times, interval_bytes)
    except DamagedFile:
        return None
