"""The check of a replica's folder against what was written: bytes in, findings out, nothing changed.

A check runs in steps of bounded bytes, so that its caller (the scrubber on a worker, `raftlog partition verify` on a
stopped node) sets the pace. Per file:

* a segment: every whole batch, with its CRC and its place by its neighbour and the leader epochs (`check_whole`), up to
  the settled end and no further: data that is being written cannot be judged;
* the two indexes of a sealed segment: the envelope's CRC, the right segment, and exact coverage;
* leader epochs, checkpoint, producer snapshots: the envelope's CRC, and a valid payload.

The first damage of a segment ends its check: behind it the start of the next batch is unknown.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Generator

import msgspec

from partitions.files.batch_walk import check_placement
from partitions.files.checkpoint import (
    CHECKPOINT_NAME,
    LEADER_EPOCHS_NAME,
    DamagedFile,
    LogCheckpoint,
    ProducerSnapshot,
    decode_leader_epochs,
    read_file,
)
from partitions.files.index_files import index_names
from partitions.files.offset_index import OffsetIndex
from partitions.files.segment import segment_name
from partitions.files.time_index import TimeIndex
from partitions.producers.snapshots import snapshot_name, snapshot_offsets
from raftlog.config import KIB, MIB
from raftlog.errors import CorruptBatch, DiskFailed
from raftlog.model import Offset
from raftlog.ports import File
from raftlog.records.batch import HEADER_BYTES, check_crc, parse_header

from .scrub_plan import PlannedSegment, ScrubPlan

NOWHERE = Offset(-1)

FINDINGS_MAX = 100
"""Bound on the findings that are kept for one replica."""

SMALL_BATCH_BYTES = 2 * KIB
"""The least bytes that a batch counts for: its check takes some microseconds, whatever its size."""

_READ_BYTES = 1 * MIB


class What(enum.Enum):
    """The kind of file that is damaged: it decides the consequence."""

    SEGMENT = "segment"
    """Records: set aside from the damage on, and fetched again from a peer."""
    INDEX = "index"
    """Rebuilt from the segment."""
    LEADER_EPOCHS = "leader epochs"
    """Written again from memory; after a stop, rebuilt from the batches, and the replica does not vouch."""
    CHECKPOINT = "checkpoint"
    """As for leader epochs."""
    PRODUCERS = "producer snapshot"
    """Removed: an older one, with more batches, gives the same state."""


class Finding(msgspec.Struct, frozen=True):
    """A file that is not what was written."""

    what: What
    file: str
    """Its name in the replica's folder."""
    detail: str
    base_offset: Offset = NOWHERE
    """The base of its segment; -1 if there is none."""
    offset: Offset = NOWHERE
    """The first record that cannot be vouched for; -1 if no record is in question."""
    position: int = -1
    """The position in the file, in bytes."""

    def __str__(self) -> str:
        where = f" at byte {self.position}" if self.position >= 0 else ""
        return f"{self.file}{where}: {self.detail}"


class FolderCheck(msgspec.Struct):
    """One pass over a replica's folder.

    Invariant: `findings` never shrinks; once `done`, `step` does nothing.
    """

    plan: ScrubPlan
    in_service: bool = False
    """Whether the log is in service: then an absent index is rebuilt in memory on demand, and is not a finding."""
    findings: list[Finding] = []
    bytes_read: int = 0
    done: bool = False
    _work: Generator[int, None, None] | None = None

    def step(self, max_bytes: int) -> int:
        """Check at least one file or one batch, then continue until `max_bytes` are read or all is done. Blocks.

        Returns the cost in bytes: a small batch counts as `SMALL_BATCH_BYTES`, since it takes as long. Unreadable bytes
        are a finding. Raises `DiskFailed` if not even a file can be opened.
        """
        if self._work is None:
            self._work = self._run()
        cost = 0
        while not self.done and cost < max(1, max_bytes):
            size = next(self._work, None)
            if size is None:
                self.done = True
            else:
                cost += max(size, SMALL_BATCH_BYTES)
                self.bytes_read += size
        return cost

    def run(self, on_read: Callable[[int], None] | None = None) -> list[Finding]:
        """Run the whole check, and return its findings."""
        while not self.done:
            before = self.bytes_read
            self.step(_READ_BYTES)
            if on_read is not None:
                on_read(self.bytes_read - before)
        return self.findings

    def close(self) -> None:
        """Abandon the check, and close its file. Not while a step runs."""
        self.done = True
        if self._work is not None:
            self._work.close()

    # --- Files ---

    def _run(self) -> Generator[int, None, None]:
        yield self._small(What.LEADER_EPOCHS, LEADER_EPOCHS_NAME, decode_leader_epochs)
        yield self._small(What.CHECKPOINT, CHECKPOINT_NAME, LogCheckpoint.decode)
        for offset in snapshot_offsets(self.plan.disk, self.plan.path):
            yield self._snapshot(offset)
        for segment in self.plan.segments:
            if segment.indexed:
                yield self._index(segment)
            yield from self._segment(segment)

    def _small(self, what: What, name: str, decode: Callable[[bytes], object]) -> int:
        content = self._read(what, name)
        if content is None:
            return 0
        try:
            decode(content)
        except DamagedFile as error:
            self._find(Finding(what, name, str(error)))
        return len(content)

    def _snapshot(self, offset: Offset) -> int:
        name = snapshot_name(offset)
        content = self._read(What.PRODUCERS, name)
        if content is None:
            return 0
        try:
            snapshot = ProducerSnapshot.decode(content)
            if snapshot.offset != offset:
                raise DamagedFile(f"it is the snapshot at offset {snapshot.offset}")
        except DamagedFile as error:
            self._find(Finding(What.PRODUCERS, name, str(error)))
        return len(content)

    def _index(self, segment: PlannedSegment) -> int:
        """Check the two index files separately, so that the finding names the right one."""
        read = 0
        offsets_name, times_name = index_names(segment.base_offset)
        for name in (offsets_name, times_name):
            content = self._read(What.INDEX, name, segment.base_offset)
            if content is None:
                continue
            read += len(content)
            try:
                index = OffsetIndex.decode(content, 0) if name == offsets_name else TimeIndex.decode(content)
                if (index.base_offset, index.end_offset) != (segment.base_offset, segment.end_offset):
                    raise DamagedFile(f"it covers offsets {index.base_offset} to {index.end_offset}")
                if isinstance(index, OffsetIndex) and segment.size is not None and index.size != segment.size:
                    raise DamagedFile(f"it covers {index.size} bytes of {segment.size}")
            except DamagedFile as error:
                self._find(Finding(What.INDEX, name, str(error), segment.base_offset))
        return read

    def _segment(self, segment: PlannedSegment) -> Generator[int, None, None]:
        name = segment_name(segment.base_offset)
        try:
            file = self.plan.disk.open(f"{self.plan.path}/{name}")
        except FileNotFoundError:
            if segment.end_offset is None or segment.end_offset > segment.base_offset:
                base = segment.base_offset
                self._find(Finding(What.SEGMENT, name, "it is gone", base_offset=base, offset=base))
            return
        with contextlib.closing(file):
            yield from _SegmentCheck(file, name, segment, self.plan, self._find).run()

    # --- Findings ---

    def _read(self, what: What, name: str, base_offset: Offset = NOWHERE) -> bytes | None:
        """Return a small file's content; None if there is none to judge."""
        try:
            content = read_file(self.plan.disk, f"{self.plan.path}/{name}")
        except DiskFailed as error:
            self._find(Finding(what, name, f"it cannot be read: {error.detail}", base_offset))
            return None
        if content is None and not self._may_be_absent(what):
            self._find(Finding(what, name, "it is gone", base_offset))
        return content

    def _may_be_absent(self, what: What) -> bool:
        """Whether a file of this kind may be absent; any snapshot may."""
        if what is What.LEADER_EPOCHS:
            return self.plan.never_written
        return what is What.PRODUCERS or (self.in_service and what is What.INDEX)

    def _find(self, finding: Finding) -> None:
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)


class _SegmentCheck:
    """The walk from batch to batch through one segment."""

    def __init__(
        self, file: File, name: str, segment: PlannedSegment, plan: ScrubPlan, find: Callable[[Finding], None]
    ) -> None:
        self._file = file
        self._name = name
        self._segment = segment
        self._epochs = plan.epochs
        self._torn_from = plan.torn_from if segment.end_offset is None else None
        self._find = find
        self._chunk = memoryview(b"")
        self._chunk_position = 0

    def run(self) -> Generator[int, None, None]:
        """Yield the bytes of each batch; for a damaged one, the bytes read for it."""
        position, offset = 0, self._segment.base_offset
        while self._goes_on(position, offset):
            try:
                size, end_offset = self._batch(position, offset)
            except CorruptBatch as error:
                if not self._is_torn(position, offset):
                    self._damaged(error.detail, offset, position)
                yield len(self._chunk)
                return
            except DiskFailed as error:
                self._damaged(f"it cannot be read: {error.detail}", offset, position)
                return
            position, offset = position + size, end_offset
            yield size
        end = self._segment.end_offset
        size_now = self._file.size()
        if end is not None and offset != end:
            self._damaged(f"a batch ends at offset {offset}, the segment at {end}", offset, position)
        elif end is None and self._torn_from is not None and offset < self._torn_from:
            self._damaged(f"the log ends here, offset {self._torn_from} was on disk", offset, position)
        elif self._segment.size is not None and not position == self._segment.size == size_now:
            self._damaged(f"batches end at byte {position}, the file at {size_now}", offset, position)

    def _goes_on(self, position: int, offset: Offset) -> bool:
        if self._segment.end_offset is None:
            return position < self._file.size()
        return offset < self._segment.end_offset

    def _batch(self, position: int, offset: Offset) -> tuple[int, Offset]:
        """Return the size of the batch at `position`, and its end offset. Raises `CorruptBatch`."""
        header = parse_header(self._bytes(position, HEADER_BYTES))
        check_placement(header, offset, self._epochs.epoch_at(offset))
        check_crc(self._bytes(position, header.total_bytes))
        return header.total_bytes, Offset(header.end_offset)

    def _bytes(self, position: int, length: int) -> memoryview:
        """Read bytes. Raises `CorruptBatch` if the file ends before that."""
        within = position - self._chunk_position
        if not 0 <= within <= len(self._chunk) - length:
            self._chunk = memoryview(self._file.pread(max(length, _READ_BYTES), position))
            self._chunk_position = position
            within = 0
        if len(self._chunk) < length:
            raise CorruptBatch(f"the file ends at byte {position + len(self._chunk)}, inside a batch")
        return self._chunk[within : within + length]

    def _is_torn(self, position: int, offset: Offset) -> bool:
        """Whether the bytes here are the remainder of a write after a crash: the beginning of a batch, or zeros."""
        if self._torn_from is None or offset < self._torn_from:
            return False
        size = self._file.size()
        try:
            header = parse_header(self._file.pread(HEADER_BYTES, position))
            if header.base_offset == offset and position + header.total_bytes > size:
                return True
        except CorruptBatch:
            if size - position < HEADER_BYTES:
                return True
        while position < size:
            data = self._file.pread(min(_READ_BYTES, size - position), position)
            if not data or data.count(0) != len(data):
                return False
            position += len(data)
        return True

    def _damaged(self, detail: str, offset: Offset, position: int) -> None:
        self._find(
            Finding(
                what=What.SEGMENT,
                file=self._name,
                detail=detail,
                base_offset=self._segment.base_offset,
                offset=offset,
                position=position,
            )
        )
