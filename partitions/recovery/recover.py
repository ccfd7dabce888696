"""Opening a log after any stop: read the files, decide by the table, act, fsync, and report what was done.

    1. Small files: checkpoint and leader epochs; each is good, absent or damaged.
    2. Segments in order: facts (`scan.py`), the row that fits (`table.py`), its action.
    3. The log as a whole against checkpoint and epochs.
    4. fsync of everything that was read and is not known to be durable, so that it may be reported and acknowledged;
       then fresh indexes, epochs and checkpoint, so that the next crash leaves less to read.

After a clean close, or if nothing was written since the last checkpoint, only small files are read, and nothing is
written. Recovery never drops bytes that look like batches: they are set aside under `….quarantined` names for a person
to inspect, and never read again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial

import msgspec
from msgspec.structs import replace

from partitions.files.checkpoint import (
    CHECKPOINT_NAME,
    CLEANER_CHECKPOINT_NAME,
    FLUSH_OS_NAME,
    LEADER_EPOCHS_NAME,
    DamagedFile,
    LogCheckpoint,
    decode_leader_epochs,
    encode_leader_epochs,
    read_file,
)
from partitions.files.durable import Durable, Steps, replaced
from partitions.files.index_files import index_names
from partitions.files.leader_epochs import LeaderEpochHistory
from partitions.files.quarantine import QUARANTINED_SUFFIX
from partitions.files.segment import (
    CLEANED_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    SegmentIndex,
    parse_segment_name,
    segment_name,
)
from partitions.producers.snapshots import SNAPSHOT_SUFFIX, prune_snapshots
from raftlog.config import MIB, TopicConfig
from raftlog.errors import DiskFailed, DiskHindered
from raftlog.model import Offset
from raftlog.ports import Disk
from raftlog.system.disk import TEMPORARY_SUFFIX

from .actions import act
from .outcome import Recovered, Recovery
from .scan import Neighbours, ScannedSegment, place_of, scan_segment
from .table import VOUCHED, Action, Content, Facts, Finding, Index, Place, Position, Row, Stop, row_for

_OWN_NAMES = (CHECKPOINT_NAME, LEADER_EPOCHS_NAME, FLUSH_OS_NAME, CLEANER_CHECKPOINT_NAME)

_FRESH_BYTES = 1 * MIB
"""Bytes behind the last segment's index: fewer are read again at the next start, too.

That is cheaper than writing an index for them at this one.
"""

_NOTES_MAX = 100


def recover(
    disk: Disk,
    path: str,
    config: TopicConfig,
    *,
    clean_shutdown: bool,
    shared: bool = False,
    same_process: bool = False,
) -> Steps[Recovered]:
    """Bring the log in folder `path` into a consistent state. Blocks.

    `shared`: it runs together with others (`partitions/files/durable.py`). `same_process`: this process opened the log
    before, so the page cache still has whatever it wrote without an fsync. Raises `DiskError`; a retry is allowed then.
    """
    return _Recovery(disk, path, config, clean_shutdown, shared, same_process).run()


class _Recovery(msgspec.Struct):
    disk: Disk
    path: str
    config: TopicConfig
    clean_shutdown: bool
    shared: bool
    same_process: bool
    notes: list[str] = []
    vouched: bool = True
    flush_os_marked: bool = False
    changed: bool = False
    """The files are not as a clean close leaves them."""
    never_written: bool = False
    unmade: bool = False
    """No checkpoint was found: perhaps the creation of the log was interrupted."""
    learn_epochs: bool = False
    epochs: LeaderEpochHistory = msgspec.field(default_factory=LeaderEpochHistory)
    epochs_on_disk: LeaderEpochHistory | None = None
    checkpoint: LogCheckpoint | None = None
    """The checkpoint as it was found."""
    kept: list[ScannedSegment] = []
    indexed: set[Offset] = set()
    """Bases of segments that have index files."""

    def run(self) -> Steps[Recovered]:
        if not self.disk.exists(self.path):
            return (yield from self._create())
        names = self.disk.list(self.path)
        self.flush_os_marked = FLUSH_OS_NAME in names
        bases = self._inventory(names)
        start = self._read_small_files(bases)
        end = yield from self._recover_segments(bases, start)
        start, end = yield from self._judge(bases, start, end)
        return (yield from self._finish(start, end))

    # --- Small files ---

    def _create(self) -> Steps[Recovered]:
        """Create a log: a checkpoint alone marks one that was never written to; its first job makes the rest."""
        self._find(Finding.CREATED)
        self.disk.make_directory(self.path)
        # `closed_clean` means that nothing was written since the last clean close: here, nothing ever.
        self.checkpoint = LogCheckpoint(Offset(0), Offset(0), True)
        folders = (self.path, self._parent)
        try:
            with contextlib.closing(self.disk.open(self._name(CHECKPOINT_NAME), exclusive=True)) as file:
                file.pwritev([self.checkpoint.encode()], 0)
                if not self.shared:
                    yield Durable((file,), folders)
            if self.shared:
                yield Durable(folders=folders)
        except DiskHindered:
            # A retry follows, and would take the partial log for damage.
            self.disk.remove(self.path)
            raise
        self._keep_unmade_segment()
        recovery = Recovery(
            clean=True,
            cut_or_quarantined=False,
            last_epoch=self.epochs.latest_epoch,
            log_start_offset=Offset(0),
            stable_end_offset=Offset(0),
            notes=tuple(self.notes),
        )
        return Recovered(recovery, self.checkpoint, self.epochs, self.kept, never_written=True)

    def _inventory(self, names: list[str]) -> list[Offset]:
        """Return the segments' base offsets, in order. Removes leftovers, and keeps unknown files."""
        bases = [base for name in names if (base := parse_segment_name(name)) is not None]
        for name in names:
            if name in _OWN_NAMES or name.endswith(QUARANTINED_SUFFIX):
                continue
            if name.endswith(CLEANED_SUFFIX):
                self._find(Finding.UNFINISHED_COMPACTION, name)
                self.disk.remove(self._name(name))
                continue
            if name.endswith(TEMPORARY_SUFFIX):
                self._find(Finding.TEMPORARY_FILE, name)
                self.disk.remove(self._name(name))
            elif parse_segment_name(name) is None and parse_segment_name(name, SNAPSHOT_SUFFIX) is None:
                owners = [parse_segment_name(name, suffix) for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)]
                if all(owner is None for owner in owners):
                    self._find(Finding.STRAY_FILE, name)
                elif any(owner in bases for owner in owners):
                    self.indexed |= {owner for owner in owners if owner is not None}
                else:
                    self._find(Finding.STRAY_INDEX, name)
                    self.disk.remove(self._name(name))
        return bases

    def _read_small_files(self, bases: list[Offset]) -> Offset:
        """Read checkpoint and leader epochs, and return the log's start."""
        try:
            content = read_file(self.disk, self._name(CHECKPOINT_NAME))
            self.checkpoint = None if content is None else LogCheckpoint.decode(content)
        except (DamagedFile, DiskFailed):
            self.checkpoint = None
        try:
            content = read_file(self.disk, self._name(LEADER_EPOCHS_NAME))
            self.epochs_on_disk = None if content is None else decode_leader_epochs(content)
            self.never_written = self._has_nothing(bases)
        except (DamagedFile, DiskFailed):
            self.epochs_on_disk = None
        if self.never_written:
            self._find(Finding.NEVER_WRITTEN)
            self.epochs_on_disk = self.epochs_on_disk or LeaderEpochHistory()
            self.epochs = self.epochs_on_disk.copy()
        elif self.epochs_on_disk is None:
            self._find(Finding.NO_LEADER_EPOCHS)
            self.learn_epochs = True
        else:
            self.epochs = self.epochs_on_disk.copy()
        if self.checkpoint is None:
            self.unmade = True
            self._find(Finding.NO_CHECKPOINT)
            return bases[0] if bases else Offset(0)
        if self.checkpoint.unreported_loss:
            self._find(Finding.UNREPORTED_LOSS)
        return self.checkpoint.log_start_offset

    def _has_nothing(self, bases: list[Offset]) -> bool:
        """Whether the checkpoint is that of an empty log that was not written to since.

        The checkpoint falls back before the first batch is written: no batch was ever acknowledged if it is as it was.
        """
        checkpoint = self.checkpoint
        if checkpoint is None or not checkpoint.closed_clean or checkpoint.recovery_point > 0:
            return False
        return not any(self._size(segment_name(base)) for base in bases)

    # --- Segments ---

    def _recover_segments(self, bases: list[Offset], start: Offset) -> Steps[Offset]:
        """Recover the segments in order, and return the log's end."""
        expected = start
        damaged = False
        for number, base in enumerate(bases):
            successor = bases[number + 1] if number + 1 < len(bases) else None
            around = Neighbours(
                log_start=start,
                successor=successor,
                expected=expected,
                is_first=not self.kept,
                behind_damage=damaged,
            )
            place = place_of(base, around, partial(self._good_end, base))
            scanned, row = self._decide(base, place, successor)
            if row.action is not Action.KEEP:
                self._note(f"{row.label} {row.action.value} segment {base} ({place.value}, {scanned.content.value})")
            if scanned.detail:
                self._note(f"   {scanned.detail}")
            if not row.vouched:
                yield from self._cannot_vouch(start)
            yield from self._act(row.action, scanned, whole=place is not Place.NEXT)
            if place is Place.NEXT and (scanned.index.size or scanned.content is Content.EMPTY):
                self.kept.append(scanned)
                expected = scanned.end_offset
            damaged |= not row.vouched
        return expected

    def _decide(self, base: Offset, place: Place, successor: Offset | None) -> tuple[ScannedSegment, Row]:
        if place is Place.NEXT:
            scanned = self._scan(base, self.epochs)
        else:
            # A segment that is not the log's next one is not read: only whether it is empty matters.
            size = self._size(segment_name(base))
            scanned = ScannedSegment(
                base_offset=base,
                size=size,
                content=Content.WHOLE if size else Content.EMPTY,
                index_state=Index.BAD,
                index=self._empty_index(base),
                unindexed_bytes=0,
                first_timestamp=-1,
            )
        position = Position.LAST if successor is None else Position.MIDDLE
        stop = Stop.CLEAN if self._closed_clean else Stop.UNCLEAN
        index = scanned.index_state
        if position is Position.LAST and base not in self.indexed:
            index = Index.GOOD  # No checkpoint was written since the segment began.
        return scanned, row_for(Facts(place, scanned.content, index, position, stop))

    def _good_end(self, base: Offset) -> Offset:
        return self._scan(base, self.epochs.copy()).end_offset

    def _scan(self, base: Offset, epochs: LeaderEpochHistory) -> ScannedSegment:
        interval = self.config.index_interval_bytes
        return scan_segment(self.disk, self.path, base, epochs, interval, learn_epochs=self.learn_epochs)

    def _act(self, action: Action, scanned: ScannedSegment, *, whole: bool) -> Steps[None]:
        if action is not Action.KEEP:
            self.changed = True
            yield from act(self.disk, self.path, action, scanned, whole=whole)

    # --- The log as a whole ---

    def _judge(self, bases: list[Offset], start: Offset, end: Offset) -> Steps[tuple[Offset, Offset]]:
        """Return where the log begins and ends.

        An empty log begins at the base of a batch that certainly existed, at or below its start: the start may lie
        within a batch, and a log is copied in whole batches. Its leader sends it the start again (S10).
        """
        checkpoint = self.checkpoint
        emptying = checkpoint is not None and checkpoint.emptying
        if emptying and (not self.kept or end < start):
            self._find(Finding.WAS_EMPTIED, f"offset {start}")
            for segment in self.kept:
                yield from self._act(Action.REMOVE, segment, whole=True)
            self.kept.clear()
            end = start
        elif not self.kept and self.never_written:
            start = end = Offset(0)
        elif not self.kept:
            self._find(Finding.NO_SEGMENT, f"offset {start}")
            start = end = max((base for base in bases if base <= start), default=Offset(0))
        elif end < start:
            self._find(Finding.ENDS_BEFORE_START, f"{end} is below {start}")
            yield from self._cannot_vouch(start)
            start = end
        if checkpoint is not None and end < checkpoint.recovery_point:
            self._find(Finding.ENDS_BEFORE_RECOVERY_POINT, f"{end} is below {checkpoint.recovery_point}")
        elif checkpoint is not None and checkpoint.closed_clean and end != checkpoint.recovery_point:
            self._find(Finding.NOT_AS_CLOSED, f"{end} is not {checkpoint.recovery_point}")
        unsynced = self.flush_os_marked or self.config.flush == "os"
        if unsynced and not (self._closed_clean or self.same_process):
            self._find(Finding.UNSYNCED_TOPIC)
        if self.epochs.truncate_end(end) and not self.learn_epochs:
            self._find(Finding.EPOCHS_BEYOND_END)
        if self.kept:
            self.epochs.truncate_start(self.kept[0].base_offset)
        return start, end

    def _finish(self, start: Offset, end: Offset) -> Steps[Recovered]:
        read = [segment for segment in self.kept if segment.read_anything]
        checkpoint = self.checkpoint
        unindexed = 0
        if checkpoint is not None and self.vouched and not self.changed and self._is_little(read):
            # Nothing lies behind what the indexes cover, all of which was fsynced before they were written, or so
            # little that the next start may read it again: it only has to be durable.
            unindexed = sum(segment.unindexed_bytes for segment in read)
            if read:
                prune_snapshots(self.disk, self.path, end_offset=end)
            if not self.kept:
                self._keep_unmade_segment()
            yield from self._make_durable([] if self._closed_clean else read)
        else:
            checkpoint = yield from self._write_anew(start, end, read)
        recovery = Recovery(
            clean=self.clean_shutdown and self._closed_clean and self.vouched and not self.changed,
            cut_or_quarantined=not self.vouched,
            last_epoch=self.epochs.latest_epoch,
            log_start_offset=start,
            stable_end_offset=end,
            notes=tuple(self.notes),
        )
        return Recovered(
            recovery=recovery,
            checkpoint=checkpoint,
            epochs=self.epochs,
            segments=self.kept,
            flush_os_marked=self.flush_os_marked,
            unindexed_bytes=unindexed,
            never_written=not self.kept[-1].on_disk,
        )

    def _is_little(self, read: list[ScannedSegment]) -> bool:
        """Whether so little was read that new index files are not worth it; only the last segment may lack an index."""
        if not read:
            return True
        last_only = read[0] is self.kept[-1]
        return last_only and read[0].unindexed_bytes < _FRESH_BYTES and self.epochs == self.epochs_on_disk

    def _write_anew(self, start: Offset, end: Offset, read: list[ScannedSegment]) -> Steps[LogCheckpoint]:
        """Write indexes, epochs and checkpoint, so that the next start has less to read and less to repair."""
        if not self.vouched:
            yield from self._cannot_vouch(start)
        if not self.kept:
            self.kept.append(self._empty_segment(end))
            self.disk.open(self._name(segment_name(end)), create=True).close()
        prune_snapshots(self.disk, self.path, end_offset=self.kept[-1].end_offset)
        yield from self._make_durable(read, names=True)
        contents: dict[str, bytes] = {}
        for segment in self.kept:
            fresh = segment.read_anything or segment.index_state is Index.BAD or segment.content is not Content.WHOLE
            if fresh and segment.index.size:
                contents |= zip(index_names(segment.base_offset), segment.index.encode(), strict=True)
        if self.epochs != self.epochs_on_disk:
            contents[LEADER_EPOCHS_NAME] = encode_leader_epochs(self.epochs.entries)
        checkpoint = LogCheckpoint(start, end, False, unreported_loss=not self.vouched)
        yield from self._replace(contents | {CHECKPOINT_NAME: checkpoint.encode()})
        return checkpoint

    def _make_durable(self, read: list[ScannedSegment], *, names: bool = False) -> Steps[None]:
        """Fsync what a killed process left in the page cache, which guarantees nothing (S1).

        `names`: the folder changed.
        """
        unmade = self.never_written or self.unmade
        if not (read or names or unmade):
            return
        paths = [self._name(segment_name(segment.base_offset)) for segment in read]
        paths += [self._name(CHECKPOINT_NAME)] if self.never_written else []
        with contextlib.ExitStack() as opened:
            files = [opened.enter_context(contextlib.closing(self.disk.open(path))) for path in paths]
            # The process may have died while it created the log: then the folder's own name is not durable either.
            yield Durable(files, (self.path, self._parent) if unmade else (self.path,))

    # --- Helpers ---

    @property
    def _closed_clean(self) -> bool:
        return self.checkpoint is not None and self.checkpoint.closed_clean

    def _cannot_vouch(self, start: Offset) -> Steps[None]:
        """Persist the loss before anything is changed: if the process dies now, the next recovery finds less wrong."""
        self.vouched = False
        # The batches that replace a loss were not compacted.
        self.disk.remove(self._name(CLEANER_CHECKPOINT_NAME))
        known = self.checkpoint or LogCheckpoint(start, start, closed_clean=False)
        if not known.unreported_loss or self.checkpoint is None:
            marked = replace(known, unreported_loss=True)
            yield from self._replace({CHECKPOINT_NAME: marked.encode()})
            self.checkpoint = marked

    def _replace(self, contents: Mapping[str, bytes]) -> Steps[None]:
        return replaced(self.disk, self.path, contents, hold=not self.shared)

    def _find(self, finding: Finding, what: str = "") -> None:
        self.vouched &= VOUCHED[finding]
        self.changed |= finding not in (Finding.STRAY_FILE, Finding.NEVER_WRITTEN)
        self._note(f"{finding.value}: {what}" if what else finding.value)

    def _note(self, text: str) -> None:
        if len(self.notes) < _NOTES_MAX:
            self.notes.append(text)

    def _size(self, name: str) -> int:
        file = self.disk.open(self._name(name))
        try:
            return file.size()
        finally:
            file.close()

    def _empty_index(self, base: Offset) -> SegmentIndex:
        return SegmentIndex.empty(base, self.config.index_interval_bytes)

    def _empty_segment(self, base: Offset) -> ScannedSegment:
        return ScannedSegment(
            base_offset=base,
            size=0,
            content=Content.EMPTY,
            index_state=Index.GOOD,
            index=self._empty_index(base),
            unindexed_bytes=0,
            first_timestamp=-1,
        )

    def _keep_unmade_segment(self) -> None:
        self.kept.append(replace(self._empty_segment(Offset(0)), on_disk=False))

    @property
    def _parent(self) -> str:
        return self.path.rpartition("/")[0]

    def _name(self, name: str) -> str:
        return f"{self.path}/{name}"
