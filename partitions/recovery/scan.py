"""The facts about a segment on disk: how far it is good, what is wrong behind that, and its place in the log.

The part that a good index covers was fsynced before the index was written, and is not read again. From there on every
batch is read whole, its CRC is checked, and it is compared with its neighbour and the leader epochs. The index grows
with it.

Names give most of a segment's place relative to the segments before it and the log's start: a segment ends where its
successor begins. But compaction merges segments, and removes the files of the merged ones only afterwards; until then
their names give a wrong end for the first one. So before a file may be removed, the file itself is read for its end.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from partitions.files.batch_walk import check_placement
from partitions.files.index_files import read_index
from partitions.files.leader_epochs import LeaderEpochHistory
from partitions.files.segment import SegmentIndex, segment_name
from raftlog.config import MAX_BATCH_BYTES, MIB
from raftlog.errors import CorruptBatch
from raftlog.model import LeaderEpoch, Offset
from raftlog.ports import Disk, File
from raftlog.records.batch import HEADER_BYTES, BatchHeader, check_crc, parse_header

from .table import Content, Index, Place

_CHUNK_BYTES = 1 * MIB


class ScannedSegment(msgspec.Struct):
    """The facts about a segment after it was read."""

    base_offset: Offset
    size: int
    """The size of the file, in bytes."""
    content: Content
    index_state: Index
    index: SegmentIndex
    """The index of exactly the good part."""
    unindexed_bytes: int
    """The bytes behind the index's part, which had to be read."""
    first_timestamp: int
    detail: str = ""
    on_disk: bool = True
    """Whether its file exists."""

    @property
    def read_anything(self) -> bool:
        """Whether bytes were read that must be fsynced before they may be relied on."""
        return self.unindexed_bytes > 0

    @property
    def end_offset(self) -> Offset:
        return self.index.end_offset


class Neighbours(msgspec.Struct, frozen=True):
    """The context of a segment when it is judged, in the order of base offsets."""

    log_start: Offset
    successor: Offset | None
    """Base offset of the next segment that was found."""
    expected: Offset
    """The end of the segments before it; the log's start if there are none."""
    is_first: bool
    """Whether no segment before it was kept."""
    behind_damage: bool


def scan_segment(
    disk: Disk, path: str, base_offset: Offset, epochs: LeaderEpochHistory, interval_bytes: int, *, learn_epochs: bool
) -> ScannedSegment:
    """Read one segment.

    With `learn_epochs` there is no history to check against: no index is trusted, and the epochs found are added to
    `epochs`, as long as they rise.
    """
    file = disk.open(f"{path}/{segment_name(base_offset)}")
    try:
        size = file.size()
        index = None if learn_epochs else read_index(disk, path, base_offset, interval_bytes)
        if index is not None and (index.size > size or not _covers_what_it_says(file, index, epochs)):
            index = None
        state = Index.BAD if index is None else Index.GOOD
        index = index or SegmentIndex.empty(base_offset, interval_bytes)
        if not size:
            return ScannedSegment(
                base_offset=base_offset,
                size=0,
                content=Content.EMPTY,
                index_state=state,
                index=index,
                unindexed_bytes=0,
                first_timestamp=-1,
            )
        covered = index.size
        content, detail = _Scan(file, size, index, epochs, learn_epochs).run()
        first = parse_header(file.pread(HEADER_BYTES, 0)).max_timestamp if index.size else -1
        return ScannedSegment(
            base_offset=base_offset,
            size=size,
            content=content,
            index_state=state,
            index=index,
            unindexed_bytes=size - covered,
            first_timestamp=first,
            detail=detail,
        )
    finally:
        file.close()


def place_of(base: Offset, around: Neighbours, good_end: Callable[[], Offset]) -> Place:
    """Return the place of the segment; `good_end` reads it, and returns the end of its good part."""
    if around.successor is not None and around.successor <= around.log_start and good_end() <= around.log_start:
        return Place.BELOW_START
    if around.behind_damage:
        return Place.BEHIND_DAMAGE
    if base == around.expected or (around.is_first and base < around.log_start):
        return Place.NEXT
    if base > around.expected:
        return Place.GAP
    return Place.WITHIN if base < good_end() <= around.expected else Place.OVERLAP


def _covers_what_it_says(file: File, index: SegmentIndex, epochs: LeaderEpochHistory) -> bool:
    """Whether the first batch is the segment's, and the headers from the last entry lead to the index's end."""
    last_offset, last_position = index.offsets.floor(index.end_offset)
    try:
        for offset, position, to_the_end in ((index.offsets.base_offset, 0, False), (last_offset, last_position, True)):
            while position < index.size:
                header = parse_header(file.pread(HEADER_BYTES, position))
                check_placement(header, offset, epochs.epoch_at(offset))
                offset, position = Offset(header.end_offset), position + header.total_bytes
                if not to_the_end:
                    break
            if to_the_end and (offset, position) != (index.end_offset, index.size):
                return False
    except CorruptBatch:
        return False
    return True


class _Scan:
    """One pass over the bytes of a segment that no index covers."""

    def __init__(
        self, file: File, size: int, index: SegmentIndex, epochs: LeaderEpochHistory, learn_epochs: bool
    ) -> None:
        self._file = file
        self._size = size
        self._index = index
        self._epochs = epochs
        self._learn_epochs = learn_epochs
        self._chunk = memoryview(b"")
        self._chunk_position = 0

    def run(self) -> tuple[Content, str]:
        while self._index.size < self._size:
            position, offset = self._index.size, self._index.end_offset
            if self._size - position < HEADER_BYTES:
                return Content.TORN, f"{self._size - position} bytes are not a whole header"
            try:
                header = parse_header(self._bytes(HEADER_BYTES))
            except CorruptBatch as error:
                return self._garbage(error.detail)
            try:
                check_placement(header, offset, self._expected_epoch(header))
            except CorruptBatch as error:
                return Content.MISPLACED, error.detail
            if position + header.total_bytes > self._size:
                return Content.TORN, f"the batch at offset {offset} is cut"
            try:
                check_crc(self._bytes(header.total_bytes))
            except CorruptBatch as error:
                return self._garbage(error.detail)
            if self._learn_epochs:
                self._epochs.assign(LeaderEpoch(header.leader_epoch), offset)
            self._index.add(header)
        return Content.WHOLE, ""

    def _expected_epoch(self, header: BatchHeader) -> LeaderEpoch:
        if not self._learn_epochs:
            return self._epochs.epoch_at(self._index.end_offset)
        # Without a history the only rule for epochs is that they do not fall.
        return LeaderEpoch(max(0, self._epochs.latest_epoch, header.leader_epoch))

    def _garbage(self, detail: str) -> tuple[Content, str]:
        """Classify bytes that are not a batch: zeros to the end are a file that grew without its data; else damage."""
        position = self._index.size
        while position < self._size:
            data = self._file.pread(min(_CHUNK_BYTES, self._size - position), position)
            if not data or data.count(0) != len(data):
                return Content.BAD_CRC, f"at offset {self._index.end_offset}: {detail}"
            position += len(data)
        return Content.TORN, f"zeros from offset {self._index.end_offset} on"

    def _bytes(self, length: int) -> memoryview:
        """Return `length` bytes from the end of the good part."""
        within = self._index.size - self._chunk_position
        if not 0 <= within <= len(self._chunk) - length:
            wanted = min(max(_CHUNK_BYTES, length), self._size - self._index.size)
            assert length <= MAX_BATCH_BYTES, length
            self._chunk = memoryview(self._file.pread(wanted, self._index.size))
            self._chunk_position = self._index.size
            within = 0
        return self._chunk[within : within + length]
