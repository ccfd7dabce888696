"""The exchange of old segments for a cleaned one: what may be compacted, how far that has come, and the exchange.

The exchange happens on the owner's thread, between two reads: names change, the segment's object changes, and the log's
generation rises, so that a worker that still reads by the old positions has to retry. The order of the renames makes
every crash readable: without indexes a segment is read from its batches, and those are the old file's or the new one's,
both of which hold the same offsets.

    remove N.index, N.timeindex → N.log.cleaned becomes N.log → the indexes' new files get their names

If several segments become one, it takes the first one's name; the next job removes the others' files, once that name is
durable. Until then their offsets lie within the new segment's, by which recovery recognizes them.
"""

from __future__ import annotations

from collections.abc import Sequence

from partitions.compaction.cleaned_file import OldSegment
from partitions.compaction.plan import CompactionPlan, SegmentFacts, plan_compaction
from partitions.compaction.run import CleanedSegment, CompactionRun
from partitions.files.checkpoint import CLEANER_CHECKPOINT_NAME, DamagedFile, decode_cleaner_checkpoint, read_file
from partitions.files.index_files import index_names
from partitions.files.segment import CLEANED_SUFFIX, Segment, SegmentFile, segment_name
from partitions.producers.aborted_ranges import AbortedRanges
from raftlog.config import TopicConfig
from raftlog.model import Offset
from raftlog.ports import Disk

from .pending import PendingWork
from .segments import LogSegments


class SegmentSwap:
    """The compaction state of one log, on its owner's thread. The log decides whether it may be written to."""

    def __init__(self, disk: Disk, path: str, segments: LogSegments, pending: PendingWork) -> None:
        self._disk = disk
        self._path = path
        self._segments = segments
        self._pending = pending
        self.first_dirty_offset = Offset(0)
        """The offset below which compaction has seen every key, and dropped what newer records overwrite.

        Too low only costs another pass; it must never be too high, or a tombstone could be removed before what it
        deletes.
        """
        self._truncations = 0

    def read_checkpoint(self) -> None:
        """Read the progress of compaction from disk. Blocks."""
        try:
            content = read_file(self._disk, f"{self._path}/{CLEANER_CHECKPOINT_NAME}")
            self.first_dirty_offset = Offset(0) if content is None else decode_cleaner_checkpoint(content)
        except DamagedFile:
            self.first_dirty_offset = Offset(0)

    def truncated(self, end_offset: Offset) -> None:
        """Record that the log was truncated: batches written from here on are not compacted."""
        self._truncations += 1
        self._pending.first_dirty_offset = None
        if end_offset < self.first_dirty_offset:
            self.first_dirty_offset = end_offset

    def plan(self, config: TopicConfig, stable_end: Offset, settled_end: Offset, now_ms: int) -> CompactionPlan | None:
        """Implement `PartitionLog.compaction_plan`. Unstable batches are not compacted."""
        sealed = []
        for segment in self._segments.all[:-1]:
            # A damaged segment is not read again and again for this; its repair replaces the log.
            if segment.index is not None or segment.suspect or segment.end_offset > stable_end:
                break
            sealed.append(
                SegmentFacts(
                    base_offset=segment.base_offset,
                    end_offset=segment.end_offset,
                    size=segment.size,
                    max_timestamp=segment.max_timestamp,
                    first_timestamp=segment.first_timestamp,
                )
            )
        return plan_compaction(config, sealed, self.first_dirty_offset, settled_end, now_ms)

    def run(
        self,
        plan: CompactionPlan,
        config: TopicConfig,
        now_ms: int,
        aborted: AbortedRanges | None,
        generation: int,
    ) -> CompactionRun:
        """Implement `PartitionLog.compaction_run`."""
        segments = [
            OldSegment(one, one.base_offset, one.end_offset, one.size)
            for one in self._segments.all[:-1]
            if one.end_offset <= plan.end
        ]
        return CompactionRun(
            disk=self._disk,
            path=self._path,
            plan=plan,
            segments=segments,
            epochs=self._segments.epochs.copy(),
            interval_bytes=self._segments.interval_bytes,
            segment_bytes=config.segment_bytes,
            now_ms=now_ms,
            aborted=AbortedRanges() if aborted is None else aborted.copy(),
            delete_retention_ms=config.delete_retention_ms,
            generation=generation,
            truncations=self._truncations,
        )

    def replace(self, cleaned: CleanedSegment) -> bool:
        """Put the cleaned segment in place of the old ones; return False if those have changed.

        Raises `DiskError`, with the files in a state that recovery understands.
        """
        if not self._still_has(cleaned.olds):
            return False
        olds = [old.segment for old in cleaned.olds]
        base = cleaned.base_offset
        self._segments.tail.forget_below(olds[-1].end_offset)
        for name in index_names(base):
            self._disk.remove(f"{self._path}/{name}")
        for name in (segment_name(base), *index_names(base)):
            self._disk.rename(f"{self._path}/{name}{CLEANED_SUFFIX}", f"{self._path}/{name}")
        self._segments.replace(olds, self._cleaned(cleaned))
        self._pending.merged([old.base_offset for old in olds[1:]])
        return True

    def ended(self, run: CompactionRun, end: Offset) -> bool:
        """Record that a pass has finished; the next job persists that. Return False if the log was truncated since."""
        if run.truncations != self._truncations:
            return False
        self.first_dirty_offset = self._pending.first_dirty_offset = end
        return True

    def _still_has(self, olds: Sequence[OldSegment]) -> bool:
        there = self._segments.from_base(olds[0].base_offset, len(olds))
        return len(there) == len(olds) and all(
            one is old.segment and one.index is None and one.size == old.size
            for one, old in zip(there, olds, strict=True)
        )

    def _cleaned(self, cleaned: CleanedSegment) -> Segment:
        first = cleaned.olds[0].segment
        last = cleaned.olds[-1].segment
        index = cleaned.index
        segment = Segment(
            base_offset=first.base_offset,
            file=SegmentFile(self._disk, f"{self._path}/{segment_name(first.base_offset)}"),
            end_offset=last.end_offset,
            size=index.size,
            max_timestamp=index.times.max_timestamp,
            first_timestamp=first.first_timestamp,
            on_disk=True,
        )
        self._segments.cache.keep_index(segment, index)
        return segment
