"""One partition's log: append, read, truncate, and jobs that make it durable.

A `PartitionLog` belongs to one thread. An append, a truncation or a moved start takes effect at once, in memory; the
disk follows with the next job. `take_job()` collects everything that is due, the job's `run()` performs it on a worker
thread and touches nothing but files, and `job_done()` brings the outcome back. At most one job is outstanding, so the
disk follows the same path as the memory did, some steps behind.

* `log_end_offset`: the next offset to write. Batches up to here can be read.
* `stable_end_offset`: everything below was fsynced (written, if the topic has `flush=os`) and has not been truncated. A
  job's result holds up to the smallest of the log end when it was taken and of every truncation since.

After a failed write or fsync, or when the bytes read are not those written, the log is `failed` permanently. A full
disk is milder: see `full`.

A read changes nothing, with one exception: it may find damage. If the owner handles the damage (`on_damage`), the log
lives on, and the damaged segment is read only with its CRCs checked, so that its good part stays available. Otherwise
the log has failed, and the damaged segment's indexes are removed, so that the next recovery reads all of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from partitions.compaction.plan import CompactionPlan
from partitions.compaction.run import CleanedSegment, CompactionRun
from partitions.files.batch_walk import check_placement
from partitions.files.damage import LogDamaged
from partitions.files.durable import Steps, alone
from partitions.files.index_files import index_names
from partitions.producers.aborted_ranges import AbortedRanges
from partitions.producers.snapshots import ReplayedState
from partitions.recovery.distrust import distrust
from partitions.recovery.outcome import Recovered, Recovery
from partitions.recovery.recover import recover
from raftlog.config import MIB, TopicConfig
from raftlog.errors import (
    CorruptBatch,
    DiskError,
    DiskFull,
    DiskHindered,
    InvalidRequest,
    InvariantViolation,
    RaftlogError,
    ResourceShortage,
    Unforeseen,
)
from raftlog.model import LeaderEpoch, Offset
from raftlog.ports import Buffer, Disk
from raftlog.records.batch import BatchHeader

from .job import LogJob
from .pending import LogState, PendingWork
from .producer_replay import LiveProducers, ProducerReplay
from .reader import LogReader
from .retention import retained_start
from .segment_swap import SegmentSwap
from .segments import LogSegments
from .slice import LogSlice, ReadBy
from .tail import BatchTail, FetchCache, TailBatch
from .time_search import TimeSearch

OWN_CACHE_BYTES = 8 * MIB
"""The cache of a log that is opened without the cache that the logs of a node share, in bytes."""


@dataclass(frozen=True, slots=True)
class LogFacts:
    """The extent of a log."""

    segments: int
    size_bytes: int
    cached_from: Offset
    """From here on, batches are in memory."""


class PartitionLog:
    """One partition's log.

    Invariant: `log_start_offset <= log_end_offset` and `stable_end_offset <= log_end_offset`.
    Invariant: offsets are dense: each batch begins where the one before it ends.
    Invariant: segments follow one another without a gap; the first holds the log start, the last the log end.
    """

    def __init__(
        self,
        disk: Disk,
        path: str,
        config: TopicConfig,
        recovered: Recovered,
        cache: FetchCache,
        producers: ReplayedState | None,
    ) -> None:
        self.path = path
        self.config = config
        """Read-only: `configure` changes it."""
        self.epochs = recovered.epochs
        """Read-only: the log changes it."""
        self.log_start_offset = recovered.recovery.log_start_offset
        self.log_end_offset = self.stable_end_offset = recovered.recovery.stable_end_offset
        self.failed: RaftlogError | None = None
        """The permanent failure: a failed write or fsync, or damage found while reading. The replica is offline."""
        self.hindered: DiskHindered | None = None
        """The reason why the last job could not be done for now.

        Appended batches stay readable and unstable, `append` refuses more, and `take_job` returns the same work again
        (the `LogWriter` retries every second) until it succeeds.
        """
        self._disk = disk
        self._cache = cache
        self._tail = BatchTail()
        self._segments = LogSegments(
            disk, path, config.index_interval_bytes, self.epochs, self._tail, cache, recovered.segments
        )
        self.producers = LiveProducers(producers, self._segments)
        self._reader = LogReader(self._segments)
        self._pending = PendingWork(disk, path, recovered, sync=config.flush == "fsync")
        self._swap = SegmentSwap(disk, path, self._segments, self._pending)
        self._generation = 0
        """Rises when batches are removed: what a worker read before says nothing about the log after."""
        self.shares_syncs = disk.syncs_all(path)
        """Whether one call of the disk can be the barrier of this log's jobs and of others'."""
        self._suspect: Offset | None = None
        """The base offset of the segment that was found damaged."""
        self._closed = False
        self.on_damage: Callable[[LogDamaged], bool] | None = None
        """Callback for damage; it returns True if the owner handles the damage, and then the log lives on."""

    @classmethod
    def open_steps(
        cls,
        disk: Disk,
        path: str,
        config: TopicConfig,
        *,
        clean_shutdown: bool,
        producers: ReplayedState | None,
        cache: FetchCache | None,
        shared: bool,
        same_process: bool = False,
    ) -> Steps[tuple[PartitionLog, Recovery]]:
        """Open the log in folder `path`, or create it if the folder does not exist; recover first.

        The steps lead from barrier to barrier (`partitions/files/durable.py`). When they are done, what was read is
        fsynced. They raise `DiskFailed` or `DiskFull`. The keywords are those of `recover`.
        """
        cache = cache or FetchCache(OWN_CACHE_BYTES)
        distrusted: set[Offset] = set()
        while True:
            recovered = yield from recover(
                disk, path, config, clean_shutdown=clean_shutdown, shared=shared, same_process=same_process
            )
            log = cls(disk, path, config, recovered, cache, producers)
            log._swap.read_checkpoint()
            try:
                while (replay := log.producer_replay()) is not None:
                    replay.run()
                    log.producers.replayed(replay)
                return log, recovered.recovery
            except LogDamaged as error:
                # An index vouched for this segment, so recovery did not read it. Without the index, recovery finds the
                # same damage (S9).
                log.close(clean=False)
                if error.base_offset in distrusted:
                    raise
                distrusted.add(error.base_offset)
                distrust(disk, path, distrusted)

    # --- Content ---

    @property
    def size_bytes(self) -> int:
        """The bytes of all batches, including those not yet written."""
        return self._segments.size_bytes

    @property
    def stable_start_offset(self) -> Offset:
        """The log start that is on disk: after a restart the log begins here or later."""
        return self._pending.checkpoint.log_start_offset

    @property
    def segments(self) -> LogSegments:
        """Read-only: the log changes them."""
        return self._segments

    @property
    def settled_end_offset(self) -> Offset:
        """The end of the batches that are in files and change only by a truncation or compaction."""
        return min(self.stable_end_offset, self._pending.written_offset)

    @property
    def first_batch_offset(self) -> Offset:
        """The base of a kept batch at or below the log start (see `LogView`), as near as an index in memory shows."""
        return self._segments.floor_offset(self.log_start_offset)

    @property
    def needs_job(self) -> bool:
        """Whether `take_job` would return a job, were none outstanding."""
        if self.failed is not None or self._closed:
            return False
        durable_start = self._durable_start
        segments = self._segments.all
        removable = len(segments) > 1 and segments[1].base_offset <= durable_start
        snapshot_due = not self._is_start_covered and self.producers.snapshot is not None
        return removable or snapshot_due or self._pending.is_due(durable_start, self.log_end_offset, segments)

    @property
    def has_removable_segments(self) -> bool:
        """Whether a segment below the start is still on disk and need not be."""
        return self._removable() or self._pending.removes

    def facts(self) -> LogFacts:
        """Return counts for status and tests."""
        return LogFacts(len(self._segments), self.size_bytes, self._tail.first_offset(self.log_end_offset))

    def __str__(self) -> str:
        state = f" failed: {self.failed}" if self.failed else " hindered" if self.full else ""
        return (
            f"start={self.log_start_offset} stable={self.stable_end_offset} end={self.log_end_offset} "
            f"segments={len(self._segments)} epochs={self.epochs}{state}"
        )

    # --- Changes ---

    def configure(self, config: TopicConfig) -> None:
        """Apply other settings, from the next batch and the next job on."""
        self.config = config
        self._segments.interval_bytes = config.index_interval_bytes
        self._pending.sync = config.flush == "fsync"

    def append(self, header: BatchHeader, buffers: Sequence[Buffer]) -> None:
        """Append one stamped and checked batch, whose bytes must not change from now on.

        The batch is readable at once, and durable when `stable_end_offset` has passed it.

        Raises `InvariantViolation` if the batch does not continue the log (base offset, leader epoch), `DiskHindered`,
        or the log's failure. Nothing was changed then.
        """
        self._refuse_if_failed()
        if self.hindered is not None:
            raise self.refusal(self.path)
        epoch = LeaderEpoch(header.leader_epoch)
        if epoch < self.epochs.latest_epoch:
            raise InvariantViolation(f"{self.path}: leader epoch {epoch} after {self.epochs.latest_epoch}")
        try:
            check_placement(header, self.log_end_offset, epoch)
        except CorruptBatch as error:
            raise InvariantViolation(f"{self.path}: {error.detail}") from None
        if self.epochs.assign(epoch, self.log_end_offset):
            self._pending.epochs_changed = True
        config = self.config
        end_offset = Offset(header.end_offset)
        length = header.total_bytes
        timestamp = header.max_timestamp
        active = self._segments.active
        if active.must_roll_before(end_offset, length, timestamp, config.segment_bytes, config.segment_ms):
            self._segments.roll(self.log_end_offset)
            active = self._segments.active
        position = active.add(end_offset, length, timestamp)
        self._tail.append(TailBatch(header, end_offset, buffers, length, active, position, self._tail))
        self._pending.appended(length)
        self.log_end_offset = end_offset

    def truncate_to(self, end_offset: Offset) -> None:
        """Drop every batch that reaches beyond `end_offset`; no effect at or above the log's end.

        `log_end_offset` is then at most `end_offset`: less if it lies inside a batch, which is dropped as a whole. May
        read a little from disk.

        Raises `InvariantViolation` below `log_start_offset` (see `truncate_fully_and_start_at`), `DiskFailed`.
        """
        self._refuse_if_failed()
        if end_offset >= self.log_end_offset:
            return
        if end_offset < self.log_start_offset:
            raise InvariantViolation(f"{self.path}: truncation to {end_offset}, below start {self.log_start_offset}")
        try:
            kept_end, cut = self._segments.drop_from(end_offset, self._pending.issued_offset)
        except CorruptBatch as error:
            raise self._fail(LogDamaged(f"{self.path}: {error.detail}", end_offset, self._generation)) from None
        except DiskHindered:
            raise  # Nothing was changed.
        except RaftlogError as error:
            raise self._fail(error) from None
        if self.epochs.truncate_end(kept_end):
            self._pending.epochs_changed = True
        self.log_end_offset = kept_end
        self.log_start_offset = min(self.log_start_offset, kept_end)
        self.stable_end_offset = min(self.stable_end_offset, kept_end)
        self._generation += 1
        self._pending.truncated(kept_end, cut)
        self._swap.truncated(kept_end)
        self.producers.batches_went()

    def truncate_fully_and_start_at(self, offset: Offset) -> None:
        """Drop everything and continue, empty, at `offset`: a follower's whole log lies below its leader's start."""
        self._refuse_if_failed()
        self._segments.drop_all_and_start_at(offset)
        self.epochs.clear()
        self.log_start_offset = self.log_end_offset = self.stable_end_offset = offset
        self._generation += 1
        self._pending.restarted(offset)
        self._swap.truncated(Offset(0))
        self.producers.emptied(offset)

    def advance_log_start(self, offset: Offset) -> None:
        """Make records below `offset` unreadable; the next jobs remove segments wholly below.

        The start never moves back. Raises `InvariantViolation` beyond the log's end.
        """
        self._refuse_if_failed()
        if offset > self.log_end_offset:
            raise InvariantViolation(f"{self.path}: start {offset} beyond the end {self.log_end_offset}")
        if offset <= self.log_start_offset:
            return
        self.log_start_offset = offset
        if offset == self.log_end_offset and self._segments.active.size:
            self._segments.roll(offset)

    def retention(self, now_ms: int | None, end_bound: Offset) -> Offset:
        """Return the start to which `retention.ms` and `retention.bytes` move the log, for `advance_log_start`.

        It is at most `end_bound` (the high watermark), and a bounded number of segments further. If `now_ms` is None,
        the clock cannot be trusted and only size counts. A log that is being restored stays whole.
        """
        if self.config.is_restoring:
            return self.log_start_offset
        return retained_start(self.config, self._segments.all, self.log_start_offset, end_bound, now_ms)

    def loss_is_reported(self) -> None:
        """Stop reporting `cut_or_quarantined` at each recovery: the quorum has accepted a report of it."""
        self._pending.unreported_loss = False

    @property
    def has_stale_loss_mark(self) -> bool:
        """Whether the checkpoint on disk may still have the mark of a loss whose report the quorum has accepted."""
        return self._pending.checkpoint.unreported_loss and not self._pending.unreported_loss

    # --- Reads ---

    def read(
        self,
        start_offset: Offset,
        end_offset: Offset,
        max_bytes: int,
        *,
        min_one_batch: bool = True,
        by: ReadBy = ReadBy.CONSUMER,
    ) -> LogSlice:
        """Return whole batches from the one that holds `start_offset` on, none reaching beyond `end_offset`.

        They have at most `max_bytes` (the first excepted, with `min_one_batch`). A follower's first batch begins at
        `start_offset`.

        Raises `InvalidRequest("offset_out_of_range")` below the start or beyond the end of the log, and `DiskFailed` if
        the disk fails or returns damaged bytes (`LogDamaged`): the log is then `failed`, unless its owner handles the
        damage. Raises `ResourceShortage` if the file cannot be opened for now: the log is unchanged.
        """
        self._refuse_if_failed()
        first = self._segments.all[0].base_offset if by is not ReadBy.CONSUMER else self.log_start_offset
        if not first <= start_offset <= self.log_end_offset:
            raise InvalidRequest(
                "offset_out_of_range", f"offset {start_offset} is not in {first} to {self.log_end_offset}"
            )
        end = min(end_offset, self.log_end_offset)
        try:
            return self._reader.read(
                start_offset,
                end,
                self.log_end_offset,
                max_bytes,
                min_one=min_one_batch,
                checked=by is ReadBy.FOLLOWER_AGAIN,
                copying=by is not ReadBy.CONSUMER,
                generation=self._generation,
            )
        except LogDamaged as error:
            self.damage_found(error)
            raise
        except DiskHindered:
            raise  # A shortage says nothing about the log.
        except RaftlogError as error:
            raise self._fail(error) from None

    def timestamp_search(self, timestamp_ms: int, end_offset: Offset) -> TimeSearch:
        """Return the search for the first record below `end_offset` whose timestamp is at least `timestamp_ms`.

        Its `run`, for a worker, touches only files and copies, and returns (offset, timestamp).
        """
        self._refuse_if_failed()
        end = min(end_offset, self.log_end_offset)
        return self._reader.time_search(timestamp_ms, self.log_start_offset, end, self.log_end_offset, self._generation)

    # --- Jobs ---

    def take_job(self) -> LogJob | None:
        """Return everything that must be written, fsynced, rolled, cut and removed now.

        None if nothing is due, a job is outstanding, or the log failed. The caller runs the job on another thread and
        then calls `job_done`.
        """
        if self._pending.outstanding is not None or not self.needs_job:
            return None
        return self._take_job()

    def job_done(self, job: LogJob, error: BaseException | None) -> None:
        """Apply the outcome of the outstanding job, on the owner's thread. Raises nothing.

        Moves `stable_end_offset`, or sets `hindered` or `failed`.
        """
        if isinstance(error, MemoryError):
            error = ResourceShortage(f"{self.path}: no memory for a job of the log")
        if isinstance(error, DiskHindered):
            self._pending.was_hindered(job)
            self.hindered = error
        elif error is not None:
            self._pending.failed(job)
            self._fail(error if isinstance(error, RaftlogError) else Unforeseen(f"{self.path}: {error!r}"))
        else:
            self.hindered = None
            stable = self._pending.done(job, self._cache, self._tail)
            if stable > self.stable_end_offset:
                self.stable_end_offset = stable
            if job.remove or job.cut is not None:
                # Only once the files are gone: as long as a batch may be found on disk, the history is needed to check
                # it.
                self.epochs.truncate_start(self._pending.first_base(self._segments.all))
        if self._suspect is not None:
            self._distrust()
        if self._closed:
            self._segments.let_go()

    def broke(self, error: BaseException) -> None:
        """Fail the log after an unforeseen error outside of any job, as a failed job would."""
        self._fail(Unforeseen(f"{self.path}: {error!r}"))

    @property
    def full(self) -> bool:
        """Whether no job can be done for now (`hindered`), so that nothing is appended."""
        return self.hindered is not None

    def refusal(self, name: str) -> DiskHindered:
        """Return the error for an append to this log, called `name` in its text, while the log is `hindered`."""
        if isinstance(self.hindered, ResourceShortage):
            return ResourceShortage(f"{name} cannot be written for now: {self.hindered.detail}")
        return DiskFull(f"the disk that holds {name} is full")

    def close(self, *, clean: bool) -> None:
        """Close all files.

        With `clean`, everything is written, fsynced and checkpointed first; no job may be outstanding (blocks, raises
        `DiskFailed` or `DiskFull`).
        """
        if clean:
            alone(self._disk, self.close_steps(shared=False))
        else:
            self._let_go()

    def close_steps(self, *, shared: bool) -> Steps[None]:
        """Return the steps of a clean close, from barrier to barrier (`partitions/files/durable.py`)."""
        self._refuse_if_failed()
        if self._pending.outstanding is not None:
            raise InvariantViolation(f"{self.path}: closed with a job under way")
        while (job := self.take_job()) is not None:
            yield from self._run_here(job, shared)
        if not self._pending.checkpoint.closed_clean:
            yield from self._run_here(self._take_job(closing=True), shared)
        self._let_go()

    def _let_go(self) -> None:
        self._closed = True
        self._segments.let_go()

    def _take_job(self, *, closing: bool = False) -> LogJob:
        while self._removable():
            self._pending.removed(self._segments.drop_first())
            self._generation += 1
        state = LogState(
            log_start=self.log_start_offset,
            durable_start=self._durable_start,
            log_end=self.log_end_offset,
            segments=self._segments.all,
            tail=self._tail,
            epochs=self.epochs,
            producer_state=self.producers.snapshot,
            covered=self._is_start_covered,
        )
        return self._pending.take(state, closing=closing)

    def _run_here(self, job: LogJob, shared: bool) -> Steps[None]:
        try:
            yield from job.steps(shared=shared)
        except RaftlogError as error:
            self.job_done(job, error)
            raise
        self.job_done(job, None)

    def _removable(self) -> bool:
        """Whether the first segment lies wholly below the durable start."""
        segments = self._segments.all
        return len(segments) > 1 and segments[1].base_offset <= self._durable_start

    @property
    def _durable_start(self) -> Offset:
        return self._stable_start if self._is_start_covered else self.stable_start_offset

    @property
    def _is_start_covered(self) -> bool:
        start = self._stable_start
        known = start <= self.stable_start_offset or self.producers.none_are_kept
        return known or self._pending.is_covered(self._segments.holding(start).base_offset)

    @property
    def _stable_start(self) -> Offset:
        start = self.log_start_offset
        stable = self.stable_end_offset
        return start if start < stable else stable

    # --- Producers ---

    def producer_replay(self) -> ProducerReplay | None:
        """Return the work for a worker that is due after a truncation; None if none is due, or it is in progress.

        When it is done, the caller calls `producers.replayed` (after `damage_found` if it failed), and this method
        again.
        """
        return self.producers.next_replay(self._generation, snapshots=not self._pending.is_emptying)

    # --- Damage ---

    def damage_found(self, error: LogDamaged, *, fatal: bool = False) -> None:
        """Apply a worker's finding that the log is not what was written.

        The log fails if the owner does not handle the damage, or cannot continue without what was to be read (`fatal`).
        If batches were removed since, nothing happens: the reader has to retry.
        """
        if error.generation != self._generation:
            return
        self._segments.holding(max(error.base_offset, self._segments.all[0].base_offset)).suspect = True
        dealt_with = self.on_damage is not None and self.on_damage(error)
        if dealt_with and not fatal:
            return
        self._fail(error)
        if not dealt_with:
            self._suspect = error.base_offset
            if self._pending.outstanding is None:
                self._distrust()

    @property
    def is_damaged(self) -> bool:
        """Whether damage was found in what the log still has."""
        return isinstance(self.failed, LogDamaged) or any(segment.suspect for segment in self._segments.all)

    def damage_in(self, base_offset: Offset, detail: str) -> LogDamaged:
        """Return the error, for `damage_found`, of damage in a segment of the log, which begins here."""
        return LogDamaged(detail, base_offset, self._generation)

    def rewrite_small_files(self) -> None:
        """Have the next job write leader epochs and checkpoint again, because they are damaged on disk."""
        self._pending.epochs_changed = self._pending.rewrite_checkpoint = True

    def _distrust(self) -> None:
        """Remove the index of the damaged segment, so that the next recovery reads all of it and finds the damage.

        If the disk refuses even that, the log has failed already.
        """
        if self._suspect is not None:
            with contextlib.suppress(DiskError):
                for name in index_names(self._suspect):
                    self._disk.remove(f"{self.path}/{name}")
            self._suspect = None

    # --- Compaction ---

    @property
    def first_dirty_offset(self) -> Offset:
        """The end of what compaction has cleaned (see `SegmentSwap`)."""
        return self._swap.first_dirty_offset

    def compaction_plan(self, settled_end: Offset, now_ms: int) -> CompactionPlan | None:
        """Return what a pass would do now below the last stable offset; None if it is not worth it."""
        if self.failed is not None or self.hindered is not None or self._closed or not self._compacts:
            return None
        return self._swap.plan(self.config, self.stable_end_offset, settled_end, now_ms)

    def seal_for_compaction(self, now_ms: int) -> bool:
        """Roll if the active segment is older than `max.compaction.lag.ms`; return whether a job is due then."""
        active = self._segments.active
        if self.failed is not None or self._closed or not self._compacts or not active.size:
            return False
        if not 0 <= active.first_timestamp < now_ms - self.config.max_compaction_lag_ms:
            return False
        self._segments.roll(self.log_end_offset)
        return True

    @property
    def _compacts(self) -> bool:
        return self.config.compacts and not self.config.is_restoring

    def compaction_run(self, plan: CompactionPlan, now_ms: int, aborted: AbortedRanges | None = None) -> CompactionRun:
        """Return a compaction pass for a worker. `aborted`: the aborted ranges below the plan's end, None for none."""
        return self._swap.run(plan, self.config, now_ms, aborted, self._generation)

    def replace_segment(self, cleaned: CleanedSegment) -> bool:
        """Put the cleaned segment in place of the old ones; return False if those have changed.

        Raises the disk's errors; the log has failed then. A job is due if several segments were replaced by one.
        """
        if self.failed is not None or self._closed:
            return False
        try:
            replaced = self._swap.replace(cleaned)
        except DiskError as error:
            raise self._fail(error) from None
        if replaced:
            self._generation += 1
        return replaced

    def compacted(self, run: CompactionRun, end: Offset) -> bool:
        """Record that a pass has finished; the next job persists that. Return False if the log was truncated since."""
        return not self._closed and self._swap.ended(run, end)

    # --- Parts ---

    def check_invariants(self) -> None:
        """Raise `InvariantViolation` if the log is inconsistent. Walks all of it, for simulators and tests."""
        self._segments.check_invariants(self.log_start_offset, self.log_end_offset)
        end = self.log_end_offset
        pending = self._pending
        good = self.log_start_offset <= end and self.stable_end_offset <= end
        if not (good and self._tail.first_offset(end) <= pending.written_offset <= pending.issued_offset <= end):
            raise InvariantViolation(f"{self.path}: {self}")

    def _refuse_if_failed(self) -> None:
        if self.failed is not None:
            raise self.failed
        assert not self._closed, self.path

    def _fail(self, error: RaftlogError) -> RaftlogError:
        if self.failed is None:
            self.failed = error
        return error
