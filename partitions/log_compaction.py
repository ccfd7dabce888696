"""A log's part in its own compaction: what may be compacted, and a cleaned segment in place of the old one.

The exchange happens on the owner's thread, between two reads: names change, the segment's object does, and the
generation rises, so that a worker that still reads by the old one's positions is told to ask again. The order of the
names makes every crash readable: without indexes a segment is read from its batches, and those are the old file's or
the new one's, both of which hold the same offsets.

    remove N.index, N.timeindex → N.log.cleaned becomes N.log → the indexes' new files get their names

Where several segments come together the first one's name is the new one's; the others' files are removed by the next
job, once that name is durable. Until then they lie within the new one, by which recovery knows them.

What is *not* here: the pass (`compaction_run.py`), its decisions (`compaction.py`), when it runs (`compactor.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from raftlog.config import TopicConfig
from raftlog.errors import DiskError
from raftlog.model import Offset

from .aborted_ranges import AbortedRanges
from .checkpoint import CLEANER_CHECKPOINT_NAME, DamagedFile, decode_cleaner_checkpoint, read_file
from .compaction import CompactionPlan, SegmentFacts, plan_compaction
from .compaction_output import OldSegment
from .compaction_run import CleanedSegment, CompactionRun
from .index_files import index_names
from .log_reads import LogReads
from .segment import CLEANED_SUFFIX, Segment, SegmentFile, segment_name


class LogCompaction(LogReads):
    """See the module; `PartitionLog` sets all of these."""

    config: TopicConfig
    first_dirty_offset: Offset
    """Below, compaction has seen every key, and dropped what they overwrite. Too low only makes it look again; it must
    never be too high, else a tombstone could go before what it deletes."""
    _truncations: int

    def read_cleaner_checkpoint(self) -> None:
        """How far compaction has come. Blocks."""
        try:
            content = read_file(self._disk, f"{self.path}/{CLEANER_CHECKPOINT_NAME}")
            self.first_dirty_offset = Offset(0) if content is None else decode_cleaner_checkpoint(content)
        except DamagedFile:
            self.first_dirty_offset = Offset(0)

    def forget_compaction(self, end_offset: Offset) -> None:
        """The log was truncated: what is written from here on was not compacted."""
        self._truncations += 1
        self._pending.first_dirty_offset = None
        if end_offset < self.first_dirty_offset:
            self.first_dirty_offset = end_offset

    def compacted(self, run: CompactionRun, end: Offset) -> bool:
        """A pass has come to its end; the next job writes that down. Nothing is, where the log was truncated since: it
        is False then."""
        if run.truncations != self._truncations or self._closed:
            return False
        self.first_dirty_offset = self._pending.first_dirty_offset = end
        return True

    def compaction_plan(self, settled_end: Offset, now_ms: int) -> CompactionPlan | None:
        """What a pass would do now below the last stable offset; None where it is not worth it."""
        if self.failed is not None or self.hindered is not None or self._closed or not self.config.compacts:
            return None
        sealed = []
        for segment in self._segments.all[:-1]:
            # What is damaged is not read again and again for this; its repair brings another log.
            if segment.index is not None or segment.suspect or segment.end_offset > self.stable_end_offset:
                break
            times = segment.max_timestamp, segment.first_timestamp
            sealed.append(SegmentFacts(segment.base_offset, segment.end_offset, segment.size, *times))
        return plan_compaction(self.config, sealed, self.first_dirty_offset, settled_end, now_ms)

    def seal_for_compaction(self, now_ms: int) -> bool:
        """Begin a new segment where the active one is older than `max.compaction.lag.ms`: there is a job then."""
        active = self._segments.active
        if self.failed is not None or self._closed or not self.config.compacts or not active.size:
            return False
        if not 0 <= active.first_timestamp < now_ms - self.config.max_compaction_lag_ms:
            return False
        self._segments.roll(self.log_end_offset)
        return True

    def compaction_run(self, plan: CompactionPlan, now_ms: int, aborted: AbortedRanges | None = None) -> CompactionRun:
        """Work for a worker. `aborted`: what of the log below the plan's end is, None: nothing."""
        segments = [
            OldSegment(one, one.base_offset, one.end_offset, one.size)
            for one in self._segments.all[:-1]
            if one.end_offset <= plan.end
        ]
        return CompactionRun(
            disk=self._disk,
            path=self.path,
            plan=plan,
            segments=segments,
            epochs=self.epochs.copy(),
            interval_bytes=self._segments.interval_bytes,
            segment_bytes=self.config.segment_bytes,
            now_ms=now_ms,
            aborted=AbortedRanges() if aborted is None else aborted.copy(),
            delete_retention_ms=self.config.delete_retention_ms,
            generation=self._generation,
            truncations=self._truncations,
        )

    def replace_segment(self, cleaned: CleanedSegment) -> bool:
        """Put the cleaned segment in place of the old ones; False where those are no longer what they were. Raises what
        the disk does, and the log has failed then. There is a job where there were several."""
        if self.failed is not None or self._closed or not self._still_has(cleaned.olds):
            return False
        olds, base = [old.segment for old in cleaned.olds], cleaned.base_offset
        self._tail.forget_below(olds[-1].end_offset)
        try:
            for name in index_names(base):
                self._disk.remove(f"{self.path}/{name}")
            for name in (segment_name(base), *index_names(base)):
                self._disk.rename(f"{self.path}/{name}{CLEANED_SUFFIX}", f"{self.path}/{name}")
        except DiskError as error:
            raise self._fail(error) from None
        self._segments.replace(olds, self._cleaned(cleaned))
        self._pending.merged([old.base_offset for old in olds[1:]])
        self._generation += 1
        return True

    def _still_has(self, olds: Sequence[OldSegment]) -> bool:
        there = self._segments.from_base(olds[0].base_offset, len(olds))
        return len(there) == len(olds) and all(
            one is old.segment and one.index is None and one.size == old.size
            for one, old in zip(there, olds, strict=True)
        )

    def _cleaned(self, cleaned: CleanedSegment) -> Segment:
        first, last, index = cleaned.olds[0].segment, cleaned.olds[-1].segment, cleaned.index
        segment = Segment(
            base_offset=first.base_offset,
            file=SegmentFile(self._disk, f"{self.path}/{segment_name(first.base_offset)}"),
            end_offset=last.end_offset,
            size=index.size,
            max_timestamp=index.times.max_timestamp,
            first_timestamp=first.first_timestamp,
            on_disk=True,
        )
        self._segments.cache.keep_index(segment, index)
        return segment
