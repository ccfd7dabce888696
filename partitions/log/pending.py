"""The changes that the disk does not have yet, kept on the owner's thread, and the job that writes them.

Memory is ahead of the disk by a known distance: batches from `issued_offset` on were handed to no job; a cut, a moved
start, changed leader epochs and finished segments wait here as well. A job takes all of it. When it is done, the disk
is as the memory was when the job was taken; later changes wait for the next job.

A job that met a full disk counts as never run: `issued_offset` falls back to where it began, and the next job first
cuts off what the failed one may have left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from partitions.files.checkpoint import LogCheckpoint, ProducerSnapshot, encode_leader_epochs
from partitions.files.leader_epochs import LeaderEpochHistory
from partitions.files.segment import Segment
from partitions.recovery.outcome import Recovered
from raftlog.model import Offset
from raftlog.ports import Disk

from .job import Cut, LogJob, SegmentWrite
from .tail import BatchTail, FetchCache, TailBatch

CHECKPOINT_INTERVAL_BYTES = 64 * 1024 * 1024
"""The interval, in bytes, at which indexes, producers and recovery point are written; they are at each roll as well.

After a crash, at most this much and one job has to be read again.
"""

LITTLE_BYTES = 64 * 1024
"""A clean close with less than this behind the last checkpoint, in bytes, writes only the recovery point.

Reading so little again at the next start is cheaper than making three files now.
"""

REMOVALS_PER_JOB = 4
"""Bound on the removals of a job: unlinking a large file takes tens of milliseconds, without any fsync of this log."""

_CUT_ALL = Cut(Offset(0), None, 0)


class LogState(msgspec.Struct, frozen=True):
    """A log as it is in memory when a job is taken."""

    log_start: Offset
    durable_start: Offset
    """The start, as far as the log is stable: a checkpoint with a start beyond its log would look like a loss."""
    log_end: Offset
    segments: Sequence[Segment]
    tail: BatchTail
    epochs: LeaderEpochHistory
    producer_state: Callable[[], bytes] | None
    covered: bool = True
    """False if the start waits for a snapshot (`PendingWork.is_covered`)."""


class PendingWork:
    """The changes of a log that wait for a job.

    Invariant: at most one job is outstanding; `issued_offset` is never beyond the log's end.
    """

    def __init__(self, disk: Disk, path: str, recovered: Recovered, *, sync: bool) -> None:
        self._disk = disk
        self._path = path
        self.sync = sync
        """Whether each job fsyncs what it writes (`flush=fsync`); otherwise only checkpoints and finished segments do.

        May change at any time: the next job fsyncs what the ones before it did not.
        """
        self._marked: bool | None = recovered.flush_os_marked
        """Whether the marker `flush-os` is on disk; None if that is uncertain."""
        self.checkpoint = recovered.checkpoint
        """The checkpoint that is on disk."""
        self.unreported_loss = self.checkpoint.unreported_loss
        self._never_written = recovered.never_written
        """Whether the first segment may have no file before the first job."""
        self.issued_offset = self.written_offset = recovered.recovery.stable_end_offset
        """Batches from `issued_offset` on were handed to no job; those below `written_offset` are in files."""
        self.outstanding: LogJob | None = None
        self.epochs_changed = False
        self.rewrite_checkpoint = False
        """Whether the checkpoint on disk is damaged."""
        self.again = False
        self.first_dirty_offset: Offset | None = None
        """The progress of compaction if the disk does not have it yet."""
        self._cut: Cut | None = None
        self._removals: list[Offset] = []
        self._merged: list[Offset] = []
        """Bases of segments that a compacted segment holds, and whose files still exist."""
        self._snapshot_offset = Offset(0)
        """The newest snapshot of producers that this process has written, unless the log was cut below it since."""
        self._bytes_since_checkpoint = recovered.unindexed_bytes
        self._lowest_truncation: Offset | None = None
        """The lowest truncation since the outstanding job was taken."""

    # --- Changes of the log in memory ---

    def appended(self, length: int) -> None:
        self._bytes_since_checkpoint += length

    def truncated(self, end_offset: Offset, cut: Cut | None) -> None:
        """Record a truncation, with a `cut` if files may hold dropped batches."""
        if self._lowest_truncation is None or end_offset < self._lowest_truncation:
            self._lowest_truncation = end_offset
        if end_offset < self._snapshot_offset:
            self._snapshot_offset = Offset(0)
        if cut is not None:
            self._cut = _lower(self._cut, cut)
            # The cut removes the files beyond it, and then new segments may reuse their names.
            self._merged = [base for base in self._merged if base < end_offset]
        self.issued_offset = min(self.issued_offset, end_offset)
        self.written_offset = min(self.written_offset, end_offset)

    def restarted(self, offset: Offset) -> None:
        """Record that the log was emptied and continues at `offset`, which may lie above its end: no file may stay."""
        self._lowest_truncation = self._snapshot_offset = Offset(0)
        self._cut = _CUT_ALL
        self._removals.clear()
        self._merged.clear()
        self.epochs_changed = True
        self.issued_offset = self.written_offset = offset

    def removed(self, segment: Segment) -> None:
        """Record that a segment below the start is no longer part of the log."""
        self._removals.append(segment.base_offset)

    def merged(self, base_offsets: Sequence[Offset]) -> None:
        """Record that the batches of these segments are now in the segment before them."""
        self._merged += base_offsets

    @property
    def removes(self) -> bool:
        """Whether segments wait to be removed."""
        return bool(self._removals)

    @property
    def is_emptying(self) -> bool:
        """Whether the folder still has the files from before the log was emptied."""
        return _CUT_ALL in (self._cut, self.outstanding.cut if self.outstanding else None)

    def is_covered(self, base_offset: Offset) -> bool:
        """Whether the log may begin with this segment on disk.

        A snapshot has to cover the producers and transactions before it. Otherwise a restart would continue with an
        older snapshot's producers, and with transactions open that ended in the removed batches (S1, S13).
        """
        return base_offset <= self._snapshot_offset or self.is_emptying

    def first_base(self, segments: Sequence[Segment]) -> Offset:
        """Return the base of the oldest segment that still has a file."""
        return self._removals[0] if self._removals else segments[0].base_offset

    def is_due(self, durable_start: Offset, log_end: Offset, segments: Sequence[Segment]) -> bool:
        return (
            self.issued_offset < log_end
            or self._cut is not None
            or self._marker_due is not None
            or self.epochs_changed
            or self.first_dirty_offset is not None
            or bool(self._removals)
            or bool(self._merged)
            or durable_start > self.checkpoint.log_start_offset
            or self.unreported_loss != self.checkpoint.unreported_loss
            or not (segments[-1].on_disk or self._never_written)
            or (len(segments) > 1 and segments[-2].index is not None)
        )

    # --- Jobs ---

    def take(self, log: LogState, *, closing: bool = False) -> LogJob:
        """Return a job of everything that is due. `closing`: the last one of a clean close."""
        assert self.outstanding is None
        unsealed = _unsealed(log.segments)
        emptying = self._cut is not None and self._cut.end_offset <= log.segments[0].base_offset
        much = self._bytes_since_checkpoint >= (LITTLE_BYTES if closing else CHECKPOINT_INTERVAL_BYTES)
        indexed = much or emptying or len(unsealed) > 1 or not (log.covered or log.producer_state is None)
        due = closing or indexed
        job = LogJob(self._disk, self._path, self.issued_offset, log.log_end, cut=self._cut, again=self.again)
        job.flush_os_marker = self._marker_due
        job.begins_log = self._never_written
        job.checkpoint_before = self._checkpoint_before(log.durable_start, emptying=emptying)
        job.remove = tuple(self._removals[:REMOVALS_PER_JOB])
        job.merged = tuple(self._merged if self._cut is not None else self._merged[:REMOVALS_PER_JOB])
        if self.epochs_changed:
            job.leader_epochs = encode_leader_epochs(log.epochs.entries)
        batches: dict[Segment, list[TailBatch]] = {segment: [] for segment in unsealed}
        for batch in log.tail.from_offset(self.issued_offset):
            batches[batch.segment].append(batch)
        appends = True
        for segment in unsealed:
            seals = segment is not unsealed[-1]
            write = self._segment_write(segment, batches[segment], due=due, indexed=indexed, seals=seals)
            if write is not None:
                job.writes.append(write)
                # The first bytes of a new file need its name durable as well.
                appends = appends and write.position > 0 and (write.alone or not write.sync)
        if due:
            # The job writes the snapshot before this checkpoint.
            start = log.log_start if log.covered or (indexed and log.producer_state is not None) else log.durable_start
            job.checkpoint_after = LogCheckpoint(start, log.log_end, closing, self.unreported_loss)
        if indexed:
            if log.producer_state is not None:
                epoch = log.epochs.epoch_at(Offset(log.log_end - 1))
                job.snapshot = ProducerSnapshot(log.log_end, epoch, log.producer_state())
            self._bytes_since_checkpoint = 0
        job.first_dirty_offset, self.first_dirty_offset = self.first_dirty_offset, None
        job.appends_only = appends and not due and _only_writes(job)
        self.outstanding = job
        self.issued_offset = log.log_end
        self.epochs_changed = self.rewrite_checkpoint = False
        self._cut = None
        self._lowest_truncation = None
        return job

    def done(self, job: LogJob, cache: FetchCache, tail: BatchTail) -> Offset:
        """Apply the success of the job, and return how far the log is stable by it."""
        assert job is self.outstanding
        self.outstanding = None
        self.again = self._never_written = False
        if job.flush_os_marker is not None:
            self._marked = job.flush_os_marker
        self.checkpoint = job.checkpoint_after or job.checkpoint_before or self.checkpoint
        if job.snapshot is not None and (self._lowest_truncation is None or self._lowest_truncation >= job.end_offset):
            self._snapshot_offset = job.snapshot.offset
        self._removals = [base for base in self._removals if base not in job.remove]
        self._merged = [base for base in self._merged if base not in job.merged]
        for write in job.writes:
            self._hand_back(write, keep=not write.segment.dropped)
            _settle(write, cache, synced=write.sync)
        stands = job.end_offset if self._lowest_truncation is None else min(job.end_offset, self._lowest_truncation)
        if stands > self.written_offset:
            cache.written([batch for batch in tail.from_offset(self.written_offset) if batch.end_offset <= stands])
            self.written_offset = stands
        return stands

    def was_hindered(self, job: LogJob) -> None:
        """Take the work back as if the job had never been taken, except that part of it may be on disk."""
        assert job is self.outstanding
        self.outstanding = None
        self.again = True
        # Otherwise a log that meets a full disk repeatedly would never come to the removals behind these.
        self._removals = [base for base in self._removals if base not in job.removed]
        self.epochs_changed = True
        if job.flush_os_marker is not None:
            self._marked = None
        # It is uncertain which checkpoint is on disk: the next job writes it in any case.
        if self._cut != _CUT_ALL:
            left_over = Cut(Offset(job.start_offset + 1), None, 0)
            self._cut = _lower(left_over, _lower(job.cut, self._cut))
            self.issued_offset = min(self.issued_offset, job.start_offset)
        for write in job.writes:
            # The next job's cut removes the files from there on, so an open one must not be kept.
            stays = self._cut is not None and write.base_offset < self._cut.end_offset
            self._hand_back(write, keep=stays and not write.segment.dropped)
        self._bytes_since_checkpoint += CHECKPOINT_INTERVAL_BYTES if job.checkpoint_after is not None else 0

    def failed(self, job: LogJob) -> None:
        assert job is self.outstanding
        self.outstanding = None
        for write in job.writes:
            self._hand_back(write, keep=False)

    # --- Parts ---

    @property
    def _marker_due(self) -> bool | None:
        """Whether the next job creates (True) or removes (False) the marker `flush-os`; None if it stays as it is."""
        wanted = not self.sync
        return None if self._marked is wanted else wanted

    def _checkpoint_before(self, durable_start: Offset, *, emptying: bool) -> LogCheckpoint | None:
        recovery_point = self.checkpoint.recovery_point
        if self._cut is not None:
            recovery_point = min(recovery_point, self._cut.end_offset)
        fallen = LogCheckpoint(
            durable_start, max(durable_start, recovery_point), False, self.unreported_loss, emptying=emptying
        )
        return fallen if fallen != self.checkpoint or self.again or self.rewrite_checkpoint else None

    def _segment_write(
        self, segment: Segment, batches: Sequence[TailBatch], *, due: bool, indexed: bool, seals: bool
    ) -> SegmentWrite | None:
        """Return the write for one segment. `due`: it makes everything durable; `indexed`: it writes index files."""
        index = segment.index
        assert index is not None
        # After a full disk the file may hold surplus bytes, which the job cuts off.
        sync = not segment.on_disk or self.again
        if due or self.sync:
            sync = sync or bool(batches) or segment.unsynced
        if not batches and not sync and not indexed:
            return None
        return SegmentWrite(
            segment=segment,
            base_offset=segment.base_offset,
            position=batches[0].position if batches else segment.size,
            batches=[(batch.header, batch.buffers) for batch in batches],
            file=segment.file.acquire() if segment.pinned else None,
            sync=sync,
            alone=bool(batches) and segment.on_disk and not segment.unsynced and not self.again,
            index_files=index.encode() if indexed else None,
            seals_at=segment.end_offset if seals else None,
        )

    def _hand_back(self, write: SegmentWrite, *, keep: bool) -> None:
        """Take back the files that the job held or opened."""
        if write.file is not None:
            write.segment.file.release()
        if write.opened is not None:
            if keep:
                write.segment.pin(write.opened)
            else:
                write.opened.close()
            write.opened = None


def _unsealed(segments: Sequence[Segment]) -> list[Segment]:
    """Return the last segment, and those before it whose index files are not complete."""
    first = len(segments) - 1
    while first > 0 and segments[first - 1].index is not None:
        first -= 1
    return list(segments[first:])


def _only_writes(job: LogJob) -> bool:
    """Whether a job without a checkpoint behind it only writes batches."""
    if job.checkpoint_before is not None or job.leader_epochs is not None or job.flush_os_marker is not None:
        return False
    return job.cut is None and not (job.again or job.remove or job.merged) and job.first_dirty_offset is None


def _settle(write: SegmentWrite, cache: FetchCache, *, synced: bool) -> None:
    """Update the segment after its part of a job was done."""
    segment = write.segment
    segment.on_disk = True
    segment.unsynced = not synced and (segment.unsynced or bool(write.batches))
    if write.seals_at is not None and not segment.dropped and segment.end_offset == write.seals_at:
        assert segment.index is not None
        cache.keep_index(segment, segment.index)
        segment.index = None
        segment.unpin()


def _lower(one: Cut | None, other: Cut | None) -> Cut | None:
    """Return the lower cut, which does what the other one does too; the first of equal ones."""
    if one is None or other is None:
        return one or other
    return one if one.end_offset <= other.end_offset else other
