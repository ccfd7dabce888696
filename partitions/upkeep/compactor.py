"""The shell of compaction: periodically selects the dirtiest log, and takes it through a pass, piece by piece.

A node runs one pass at a time. A worker does a piece (about a megabyte), the owner's thread exchanges finished
segments, and between two pieces there is a pause that keeps the rate: compaction can wait, producers and consumers
cannot. While a worker is at a piece the log's folder is held (`LogWriter.hold`), so that it is not moved away.

A pass ends early when its log does: closed, moved away, failed. Its finished segments stay, the rest is removed. A log
whose pass made no progress, for whatever reason, is skipped for a while, so that others have their turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from weakref import WeakKeyDictionary

from partitions.compaction.plan import CompactionPlan
from partitions.compaction.run import CleanedSegment, CompactionRun, Finished, Paused, Piece
from partitions.driver.driver import PartitionDriver
from partitions.log.writer import LogWriter
from raftlog.config import MIB
from raftlog.errors import RetriableError
from raftlog.ports import Logger, Scheduler, Worker
from raftlog.system.cluster_clock import ClusterClock

CHECK_SECONDS = 15.0
"""The interval of the check, as in Kafka's cleaner."""

BYTES_PER_SECOND = 32 * MIB
"""Bound on the rate at which compaction reads."""

RESTS = 8
"""The number of checks that skip a log after a pass without progress: two minutes."""


class Compactor:
    """The compactor of a node. `drivers` returns the replicas in service."""

    def __init__(
        self,
        scheduler: Scheduler,
        worker: Worker,
        writer: LogWriter,
        clock: ClusterClock,
        logger: Logger,
        drivers: Callable[[], Iterable[PartitionDriver]],
    ) -> None:
        self._scheduler = scheduler
        self._worker = worker
        self._writer = writer
        self._clock = clock
        self._logger = logger
        self._drivers = drivers
        self._busy = False
        self._closed = False
        self._resting: WeakKeyDictionary[PartitionDriver, int] = WeakKeyDictionary()
        """Driver → the number of checks that still skip it."""
        self.passes = 0
        """Passes that were completed."""

    def start(self) -> None:
        """Check every `CHECK_SECONDS` from now on."""
        self._scheduler.call_later(CHECK_SECONDS, self._check)

    def close(self) -> None:
        """Begin nothing any more; a piece in flight is the last."""
        self._closed = True

    def look(self) -> bool:
        """Begin a pass over the dirtiest log, if there is one and none is in progress; return whether one began."""
        now_ms = self._clock.expiry_ms()
        compacted = [driver for driver in self._drivers() if driver.log.config.compacts]
        if not compacted or self._busy or self._closed:
            return False
        if now_ms is None:
            self._logger.warning(f"compaction waits, as retention does: {self._clock.doubt()}")
            return False
        found: tuple[PartitionDriver, CompactionPlan] | None = None
        for driver in compacted:
            driver.seal_for_compaction(now_ms)
            if self._rests(driver):
                continue
            plan = driver.log.compaction_plan(driver.reads.settled_end, now_ms)
            if plan is not None and (found is None or plan.dirty_ratio > found[1].dirty_ratio):
                found = (driver, plan)
        if found is None:
            return False
        driver, plan = found
        run = driver.log.compaction_run(plan, now_ms, driver.reads.aborted)
        self._busy = True
        self._next(driver, run)
        return True

    # --- Inside ---

    def _rests(self, driver: PartitionDriver) -> bool:
        left = self._resting.pop(driver, 0)
        if left > 1:
            self._resting[driver] = left - 1
        return left > 0

    def _check(self) -> None:
        if not self._closed:
            self._scheduler.call_later(CHECK_SECONDS, self._check)
            self.look()

    def _next(self, driver: PartitionDriver, run: CompactionRun) -> None:
        if self._closed or driver.closed or not self._writer.hold(driver.log):
            # Its folder is no longer available; recovery removes the leftovers.
            self._busy = False
            return
        try:
            self._worker.submit(run.next_piece, partial(self._on_piece, driver, run))
        except BaseException:
            self._over(driver)
            raise

    def _over(self, driver: PartitionDriver) -> None:
        """End the pass: nothing of it is in flight any more."""
        self._busy = False
        self._writer.give_back(driver.log)

    def _on_piece(
        self, driver: PartitionDriver, run: CompactionRun, piece: Piece | None, error: BaseException | None
    ) -> None:
        try:
            if error is None and isinstance(piece, CleanedSegment) and not driver.closed:
                self._replace(driver, piece)
        except Exception as failed:  # noqa: BLE001  any error ends the pass, and is passed to the driver
            error = failed
        if isinstance(piece, Finished) or error is not None:
            self._end(driver, run, piece, error)
            return
        self._writer.give_back(driver.log)
        assert isinstance(piece, Paused | CleanedSegment)
        seconds = piece.bytes_read / BYTES_PER_SECOND
        self._scheduler.call_later(seconds, lambda: self._next(driver, run))

    def _replace(self, driver: PartitionDriver, cleaned: CleanedSegment) -> None:
        if not driver.replace_segment(cleaned):
            # Later pieces of the pass may rest on records that this segment lacks.
            raise RetriableError("offset_not_available", f"segment {cleaned.base_offset} changed meanwhile")
        self._logger.info(
            "segment compacted",
            partition=driver.name,
            segment=cleaned.base_offset,
            segments_before=len(cleaned.olds),
            bytes_before=cleaned.old_size,
            bytes_after=cleaned.index.size,
        )

    def _end(
        self, driver: PartitionDriver, run: CompactionRun, piece: Piece | None, error: BaseException | None
    ) -> None:
        """End the pass: record how far it came, or remove what it left."""
        if not isinstance(piece, Finished) or piece.end <= run.plan.first_dirty:
            self._resting[driver] = RESTS

        def done(_: None, failed: BaseException | None) -> None:
            try:
                if failed is not None:
                    self._logger.warning("compaction left files", partition=driver.name, error=str(failed))
                elif isinstance(piece, Finished):
                    if piece.left_whole:
                        self._logger.warning("compaction left a batch", partition=driver.name, reason=piece.left_whole)
                    driver.compacted(run, piece.end)
                    self.passes += 1
            finally:
                self._over(driver)

        try:
            if error is not None:
                self._logger.warning("compaction ended early", partition=driver.name, error=str(error))
                if not driver.closed:
                    driver.on_load_failed(error)
                    if driver.log.failed is not None:
                        driver.go_offline(str(driver.log.failed))
        finally:
            self._worker.submit(run.clear_away, done)
