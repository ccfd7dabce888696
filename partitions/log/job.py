"""One job of disk work: made on the owner's thread, run on a worker's, of files and bytes alone.

The order of the steps keeps every crash between them readable by `partitions/recovery/recover.py`. Before each step the
ones before it are durable (`partitions/files/durable.py`, which also syncs many jobs together):

    1. The first segment of a log that was never written to, empty. The marker `flush-os`, ahead of the first write that
       is not fsynced. The leader epochs, ahead of the first batch of a new one; if there is a cut, or leftovers of a
       full disk, they come after 2. The checkpoint falls back (start moved, cut below the recovery point, first write
       after a clean close).
    2. Segments whose batches a compacted one holds are removed; the folder is fsynced before that, so that the new
       segment's name is not lost with them. The cut: files beyond it are removed, the one that it goes through is
       shortened and fsynced, then the folder.
    3. The batches, each checked against its place once more; the folder, if it has new names.
    4. The marker is removed if everything is fsynced from here on.
    5. The indexes of segments that will not grow, or that a checkpoint covers; the producer snapshot and the
    checkpoint,
       now that everything below them is durable; the progress of compaction.
    6. Segments below the start are removed. After a full disk this is done right behind 1, and their indexes go before
       it: that may make room.

Each step is idempotent: a job that was hindered (`DiskHindered`) is made again from the same memory and run from its
beginning.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import msgspec

from partitions.files.batch_walk import check_placement
from partitions.files.checkpoint import (
    CHECKPOINT_NAME,
    CLEANER_CHECKPOINT_NAME,
    FLUSH_OS_NAME,
    LEADER_EPOCHS_NAME,
    LogCheckpoint,
    ProducerSnapshot,
    encode_cleaner_checkpoint,
)
from partitions.files.durable import Durable, Steps, alone, replaced
from partitions.files.segment import (
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    Segment,
    parse_segment_name,
    segment_name,
)
from partitions.producers.snapshots import prune_snapshots, snapshot_name
from raftlog.errors import CorruptBatch, DiskFailed, DiskHindered, InvariantViolation
from raftlog.model import Offset
from raftlog.ports import Buffer, Disk, File
from raftlog.records.batch import HEADER_BYTES, BatchHeader, parse_header


class Cut(msgspec.Struct, frozen=True):
    """A truncation: on disk, nothing from `end_offset` on may stay."""

    end_offset: Offset
    keep_base: Offset | None
    """The segment that the cut goes through and that ends there from now on; None if the cut falls between two."""
    keep_bytes: int


class SegmentWrite(msgspec.Struct):
    """The changes of one segment's files."""

    segment: Segment
    base_offset: Offset
    position: int
    batches: Sequence[tuple[BatchHeader, Sequence[Buffer]]]
    file: File | None
    """The open file, held for the job; None if the job opens it (and creates it if absent)."""
    sync: bool
    alone: bool = False
    """Everything else in the file is stable: only these batches need a sync, which one call can do."""
    index_files: tuple[bytes, bytes] | None = None
    seals_at: Offset | None = None
    """The segment's end, if it is complete and does not grow any more."""
    opened: File | None = None
    """Set by `run`: the file that it opened, for the owner to take over, after a failure too."""


class LogJob(msgspec.Struct, eq=False):
    """One job of disk work. `run` may be called once."""

    disk: Disk
    path: str
    start_offset: Offset
    end_offset: Offset
    """The job writes the batches between; `end_offset` is the log's end when the job was taken."""
    flush_os_marker: bool | None = None
    """Whether the marker is to exist when the job is done; None: unchanged."""
    checkpoint_before: LogCheckpoint | None = None
    cut: Cut | None = None
    leader_epochs: bytes | None = None
    writes: list[SegmentWrite] = []
    snapshot: ProducerSnapshot | None = None
    checkpoint_after: LogCheckpoint | None = None
    first_dirty_offset: Offset | None = None
    """The progress of compaction, if that is new."""
    remove: tuple[Offset, ...] = ()
    """Bases of segments below the start."""
    merged: tuple[Offset, ...] = ()
    """Bases of segments whose batches another one holds."""
    again: bool = False
    """A job before this one was hindered: its bytes may lie behind the position to write at."""
    begins_log: bool = False
    """This is the log's first job, or its retry: there is no segment yet, and there are no epochs."""
    removed: tuple[Offset, ...] = ()
    """Set by `run`: those of `remove` whose files are gone, even if the job failed later."""
    appends_only: bool = False
    """The job only appends batches to others: the common case, with one call for each segment."""

    def run(self) -> None:
        """Run the job alone, on a worker's thread.

        Raises `DiskError`, or `InvariantViolation` if the files are not what the owner knows them to be.
        """
        if self.appends_only:
            for write in self.writes:
                self._write(write, at_once=True)
        else:
            alone(self.disk, self.steps())

    def steps(self, *, shared: bool = False) -> Steps[None]:
        """Return the steps of `run`, from barrier to barrier. `shared`: many jobs share the disk's barriers."""
        epochs_wait = not self.begins_log and (self.cut is not None or self.again)
        if self.begins_log and (self.cut is None or self.writes[0].base_offset < self.cut.end_offset):
            # A log that may have been written to has its first segment: from then on recovery can detect a lost
            # segment.
            self._file_of(self.writes[0])
        if self.again:
            # A checkpoint precedes the removal that it announces, and needs room itself. The indexes have room, and no
            # reader.
            self._remove(self.remove, INDEX_SUFFIXES)
        yield from self._replace(self._replaced_before(with_epochs=not epochs_wait), shared)
        yield from self._remove_merged()
        if self.again:
            self._remove_below_start()  # This may make room for the rest.
        if self.cut is not None:
            yield from self._cut(self.cut)
        if epochs_wait and self.leader_epochs is not None:
            yield from self._replace({LEADER_EPOCHS_NAME: self.leader_epochs}, shared)
        for write in self.writes:
            self._write(write, at_once=not shared)
        yield from self._written(shared)
        if self.flush_os_marker is False:
            self.disk.remove(self._name(FLUSH_OS_NAME))
            yield Durable(folders=(self.path,))
        yield from self._replace(self._replaced_after(), shared)
        if self.snapshot is not None:
            prune_snapshots(self.disk, self.path)
        self._remove_below_start()

    def _replace(self, contents: Mapping[str, bytes], shared: bool) -> Steps[None]:
        return replaced(self.disk, self.path, contents, hold=not shared)

    def _replaced_before(self, *, with_epochs: bool) -> dict[str, bytes]:
        contents = {}
        if self.flush_os_marker:
            contents[FLUSH_OS_NAME] = b"1\n"
        # Ahead of the checkpoint: only a log that was never written to, by its checkpoint, is good without epochs.
        if with_epochs and self.leader_epochs is not None:
            contents[LEADER_EPOCHS_NAME] = self.leader_epochs
        if self.checkpoint_before is not None:
            contents[CHECKPOINT_NAME] = self.checkpoint_before.encode()
        return contents

    def _replaced_after(self) -> dict[str, bytes]:
        contents = {}
        for write in self.writes:
            if write.index_files is not None:
                for suffix, index in zip((OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX), write.index_files, strict=True):
                    contents[segment_name(write.base_offset, suffix)] = index
        if self.snapshot is not None:
            contents[snapshot_name(self.snapshot.offset)] = self.snapshot.encode()
        if self.checkpoint_after is not None:
            contents[CHECKPOINT_NAME] = self.checkpoint_after.encode()
        if self.first_dirty_offset is not None:
            contents[CLEANER_CHECKPOINT_NAME] = encode_cleaner_checkpoint(self.first_dirty_offset)
        return contents

    def _written(self, shared: bool) -> Steps[None]:
        """Return the barrier behind the batches, without those that are durable already."""
        files = [self._file_of(write) for write in self.writes if write.sync and (shared or not write.alone)]
        names = any(write.opened is not None and not write.position for write in self.writes)
        if files or names:
            yield Durable(files, (self.path,) if names else ())

    def _remove_merged(self) -> Steps[None]:
        if not self.merged:
            return
        yield Durable(folders=(self.path,))
        self._remove(self.merged)
        if self.cut is not None:
            # Within a segment that is cut they would lie beyond its end.
            yield Durable(folders=(self.path,))

    def _remove_below_start(self) -> None:
        self._remove(self.remove)
        self.removed = self.remove

    def _remove(self, base_offsets: Sequence[Offset], suffixes: Sequence[str] = SEGMENT_SUFFIXES) -> None:
        for base_offset in base_offsets:
            for suffix in suffixes:
                self.disk.remove(self._name(segment_name(base_offset, suffix)))

    def _cut(self, cut: Cut) -> Steps[None]:
        # The batches written at these offsets next are not compacted, and tombstones must not go before what they
        # delete. So the progress of compaction is removed first: a crash in between must not leave it to a log that was
        # cut.
        if self.disk.exists(self._name(CLEANER_CHECKPOINT_NAME)):
            self.disk.remove(self._name(CLEANER_CHECKPOINT_NAME))
            yield Durable(folders=(self.path,))
        for name in reversed(self.disk.list(self.path)):
            for suffix in SEGMENT_SUFFIXES:
                base_offset = parse_segment_name(name, suffix)
                if base_offset is None:
                    continue
                # The indexes of the shortened segment cover what is cut off; they are removed too, and written again
                # below.
                if base_offset >= cut.end_offset or (base_offset == cut.keep_base and suffix != LOG_SUFFIX):
                    self.disk.remove(self._name(name))
        prune_snapshots(self.disk, self.path, end_offset=cut.end_offset)
        if cut.keep_base is not None:
            with contextlib.closing(self._open(cut.keep_base)) as file:
                if file.size() < cut.keep_bytes:
                    raise InvariantViolation(f"{self.path}: segment {cut.keep_base} is shorter than its cut, {cut}")
                file.truncate(cut.keep_bytes)
                yield Durable((file,))
        yield Durable(folders=(self.path,))

    def _write(self, write: SegmentWrite, *, at_once: bool) -> None:
        """Write a segment's batches. `at_once`: use the call that writes and syncs, if the write allows it."""
        buffers: list[Buffer] = []
        position = write.position
        offset = None
        for header, pieces in write.batches:
            check_bytes_to_write(header, pieces, Offset(header.base_offset if offset is None else offset))
            offset = header.end_offset
            position += header.total_bytes
            buffers += pieces
        if not buffers and not write.sync:
            return
        file = self._file_of(write)
        size = file.size()
        if size > write.position and self.again:
            file.truncate(write.position)
        elif size != write.position:
            raise InvariantViolation(
                f"{self.path}: segment {write.base_offset} has {size} bytes, {write.position} are known"
            )
        if buffers:
            try:
                if at_once and write.sync and write.alone:
                    file.pwritev_stable(buffers, write.position)
                else:
                    file.pwritev(buffers, write.position)
            except DiskHindered:
                # The partial write is cut off again; if even that fails, the log has failed.
                file.truncate(write.position)
                raise

    def _file_of(self, write: SegmentWrite) -> File:
        file = write.file or write.opened
        if file is None:
            file = write.opened = self.disk.open(self._name(segment_name(write.base_offset)), create=True, bulk=True)
        return file

    def _open(self, base_offset: Offset) -> File:
        try:
            return self.disk.open(self._name(segment_name(base_offset)), bulk=True)
        except FileNotFoundError:
            raise DiskFailed(f"{self.path}: segment {base_offset} is gone") from None

    def _name(self, name: str) -> str:
        return f"{self.path}/{name}"


def check_bytes_to_write(header: BatchHeader, pieces: Sequence[Buffer], expected_offset: Offset) -> None:
    """Check that the bytes about to be written are those that the log expects. Raises `InvariantViolation`."""
    first = memoryview(pieces[0]).cast("B")
    front = (
        first if first.nbytes >= HEADER_BYTES else b"".join(memoryview(piece)[:HEADER_BYTES] for piece in pieces[:4])
    )
    try:
        found = parse_header(front)
        check_placement(found, expected_offset, header.leader_epoch)  # type: ignore[arg-type]
    except CorruptBatch as error:
        raise InvariantViolation(f"about to write a bad batch: {error.detail}") from None
    if found.total_bytes != sum(memoryview(piece).nbytes for piece in pieces):
        raise InvariantViolation(
            f"the batch at {expected_offset} does not have the {found.total_bytes} bytes that its header says"
        )
