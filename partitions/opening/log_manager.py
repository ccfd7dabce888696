"""Logs that are not in service: found at the start, being opened, being removed. Blocking work goes to the worker.

Every replica of the broker is either with its driver or here, in one of these states:

    loaded     its log is open and waits for the view to name it
    opening    a worker opens or creates it
    removing   its folder is set aside and deleted
    failed     it could not be opened, and stays so until the next start (if it was only hindered, by a full disk for
               example, it is retried)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import TypeVar

from partitions.files.durable import TOGETHER_MAX, Steps
from partitions.files.quarantine import prune_quarantined
from partitions.log.log import PartitionLog
from partitions.log.tail import FetchCache
from partitions.log.writer import LogWriter
from partitions.producers.state import DEFAULT_BOUNDS, ProducerBounds
from partitions.recovery.distrust import distrust
from partitions.recovery.loss_mark import mark_loss
from raftlog.config import TopicConfig
from raftlog.errors import DiskFailed, DiskHindered
from raftlog.model import Offset, ReplicaReport, TopicPartition
from raftlog.ports import Disk, Logger, Scheduler, Worker
from raftlog.slices import in_turns

from .batches import BatchedOpener, OpenTask, run_all
from .folders import (
    OpenedReplica,
    delete_set_aside,
    find_replicas,
    find_set_aside,
    folder_of,
    open_steps,
    prepare_folders,
    set_aside,
    shares_syncs,
)

STRAY_SECONDS = 3600.0
"""How long a stray folder is kept, set aside, so that an operator may notice it."""

MOVED_SECONDS = 60.0
"""How long a replica that was moved to other brokers is kept, set aside.

Long enough to stop a mistake, short enough not to keep a disk full.
"""

HINDERED_RETRY_SECONDS = 5.0

T = TypeVar("T")


class LogManager:
    """The logs of a broker that are not in service.

    `on_change` is called for a replica that can be taken, or created again, or could not be opened.
    """

    def __init__(
        self,
        disk: Disk,
        scheduler: Scheduler,
        worker: Worker,
        writer: LogWriter,
        logger: Logger,
        on_change: Callable[[TopicPartition], None],
        cache_bytes: int,
        producer_bounds: ProducerBounds = DEFAULT_BOUNDS,
    ) -> None:
        self._disk = disk
        self._scheduler = scheduler
        self._worker = worker
        self._writer = writer
        self._logger = logger
        self._on_change = on_change
        self._cache = FetchCache(cache_bytes)
        self._producer_bounds = producer_bounds
        self._rounds = BatchedOpener(disk, scheduler, worker)
        self._loaded: dict[TopicPartition, OpenedReplica] = {}
        self.returned: dict[TopicPartition, PartitionLog] = {}
        """Logs whose drivers ended because the broker stops."""
        self._opening: dict[TopicPartition, None] = {}
        self._removing: dict[TopicPartition, None] = {}
        self._failed: dict[TopicPartition, str] = {}
        self._again: dict[TopicPartition, Callable[[bool], Steps[OpenedReplica]]] = {}
        """The steps to open those that were only hindered."""
        self._spoiled: dict[TopicPartition, list[str]] = {}
        """The quarantined files in the folders of replicas that were taken."""
        self._closing = False

    def load(self, *, clean_shutdown: bool) -> list[ReplicaReport]:
        """Open every replica found on disk. Blocks.

        A replica that a broken disk cannot read is left out, as if it did not exist: the quorum then does not count on
        it, and the others are served (S9). Raises `DiskHindered`, and `DiskFailed` if not even the folders can be
        listed.
        """
        prepare_folders(self._disk)
        found = find_replicas(self._disk)
        for first in range(0, len(found), TOGETHER_MAX):
            some = found[first : first + TOGETHER_MAX]
            pieces = [self._piece(tp, self._steps(tp, None, clean_shutdown=clean_shutdown)) for tp in some]
            outcomes = run_all(self._disk, pieces)
            for tp, opened in zip(some, outcomes, strict=True):
                if isinstance(opened, DiskFailed):
                    self._could_not_open(tp, opened)
                elif isinstance(opened, Exception):
                    raise opened
                else:
                    self._loaded[tp] = opened
        for path in find_set_aside(self._disk):
            self._scheduler.call_later(STRAY_SECONDS, partial(self._delete, path))
        return [opened.report for opened in in_order(self._loaded)]

    def take(self, tp: TopicPartition, config: TopicConfig) -> OpenedReplica | None:
        """Hand over the replica's open log; None if it is not open: `on_change` reports when to retry, if ever."""
        opened = self._loaded.pop(tp, None)
        if opened is None:
            if tp not in self._opening and tp not in self._removing and tp not in self._failed and not self._closing:
                self._open(tp, self._again.pop(tp, self._steps(tp, config, clean_shutdown=False)))
            return None
        if opened.set_aside:
            self._spoiled[tp] = opened.set_aside
        opened.log.configure(config)
        return opened

    def in_sync(self, tp: TopicPartition) -> None:
        """Prune the quarantined files of a replica that is in sync; a bounded part stays for inspection."""
        names, path = self._spoiled.pop(tp, None), folder_of(tp)
        if names:
            self._worker.submit(partial(prune_quarantined, self._disk, path, names), self._note_error(path, "pruning"))

    def losses_are_reported(self) -> Iterator[Callable[[], None]]:
        """Yield steps that stop the reports of losses: the quorum has accepted a registration with them."""
        for opened in in_order(self._loaded):
            if opened.recovery.cut_or_quarantined:
                yield partial(self._loss_is_reported, opened)

    def _loss_is_reported(self, opened: OpenedReplica) -> None:
        opened.log.loss_is_reported()
        self._writer.dirty(opened.log, lambda: None)

    def failure(self, tp: TopicPartition) -> str:
        """Return why the replica could not be opened; empty if it was, or will be."""
        return self._failed.get(tp, "")

    def failures(self) -> list[tuple[TopicPartition, str]]:
        """Return every replica that could not be opened, and the reason."""
        return sorted(self._failed.items())

    def remove(self, tp: TopicPartition, log: PartitionLog | None, *, keep_seconds: float = 0.0) -> None:
        """Remove a replica that this broker no longer has: close its log, set the folder aside, and delete it later.

        `keep_seconds` is the time until the deletion. `log` is the caller's, or None if the replica is here, if
        anywhere.
        """
        self._again.pop(tp, None)
        self._spoiled.pop(tp, None)
        if log is None:
            opened = self._loaded.pop(tp, None)
            log = opened.log if opened else None
        if log is not None and tp not in self._removing:
            self._removing[tp] = None
            self._discard(tp, log, keep_seconds=keep_seconds)

    def set_strays_aside(self, known: Collection[TopicPartition]) -> None:
        """Set aside every replica on disk that the complete view does not know."""
        for tp in [tp for tp in self._loaded if tp not in known]:
            self._logger.warning("stray replica set aside", partition=str(tp), kept_seconds=STRAY_SECONDS)
            self._removing[tp] = None
            self._discard(tp, self._loaded.pop(tp).log, keep_seconds=STRAY_SECONDS)

    def reopen(self, tp: TopicPartition, log: PartitionLog, suspects: Collection[Offset]) -> None:
        """Recover a damaged replica that no longer counts, and open it again; `suspects` are the damaged offsets.

        The log is closed here. The quorum knows already what recovery will lose.
        """
        config = log.config
        self._opening[tp] = None
        log.close(clean=False)

        def steps(shared: bool) -> Steps[OpenedReplica]:
            distrust(self._disk, folder_of(tp), suspects)
            opened = yield from self._steps(tp, config, clean_shutdown=False)(shared)
            opened.log.loss_is_reported()
            return opened

        self._writer.forget(log, lambda: self._open(tp, steps))

    def reopen_as_it_is(self, tp: TopicPartition, log: PartitionLog, pause: float) -> None:
        """Close the log of a replica that counts, and open it again after `pause` seconds.

        No fault of the disk is known. If the recovery loses anything (S6, S9), or the log is shorter than it was, the
        replica is not opened; the next start reports the loss. A loss that the quorum knows does not count, and neither
        do the unsynced writes of `flush=os`: they are in the page cache, which has outlived the log.
        """
        config = log.config
        path = folder_of(tp)
        stale_mark = log.has_stale_loss_mark
        # A log that was emptied may begin far beyond the end of its files, which are still to be removed.
        emptied = log.segments.all[0].base_offset == log.stable_end_offset
        stable_end = Offset(0) if emptied else log.stable_end_offset
        self._opening[tp] = None
        log.close(clean=False)

        def steps(shared: bool) -> Steps[OpenedReplica]:
            nonlocal stale_mark
            if stale_mark:
                yield from mark_loss(self._disk, path, unreported=False, shared=shared)
                stale_mark = False  # From now on the mark is that of a loss found here, perhaps by an earlier attempt.
            opened = yield from self._steps(tp, config, clean_shutdown=False, same_process=True)(shared)
            shorter = opened.log.stable_end_offset < stable_end
            if shorter or opened.recovery.cut_or_quarantined:
                opened.log.close(clean=False)
                if shorter:
                    yield from mark_loss(self._disk, path, unreported=True, shared=shared)
                raise DiskFailed(f"{path}: recovery found a loss that only the next start can report")
            return opened

        def later() -> None:
            self._scheduler.call_later(pause, open_again)

        def open_again() -> None:
            if tp in self._opening and not self._closing:
                self._open(tp, steps)

        self._writer.forget(log, later)

    def give_up(self, tp: TopicPartition, log: PartitionLog, reason: str) -> None:
        """Keep the replica out of service until the next start."""
        self._failed[tp] = reason
        log.close(clean=False)
        self._writer.forget(log, lambda: None)

    def put_back(self, tp: TopicPartition, log: PartitionLog) -> None:
        """Take back the log of a driver that ended with the broker, to close it with the others."""
        self.returned[tp] = log

    def close(self, done: Callable[[bool], None], *, clean: bool) -> None:
        """Close every log; `done(True)` means that each was closed as asked."""
        self._closing = True
        logs = [opened.log for opened in in_order(self._loaded)]
        logs += in_order(self.returned)
        left, good = len(logs) + 1, True

        def closed(_: None, error: BaseException | None) -> None:
            nonlocal left, good
            left -= 1
            good = good and error is None
            if not left:
                done(good)

        def close_one(log: PartitionLog) -> None:
            if clean and log.failed is None:
                piece = OpenTask(lambda shared: log.close_steps(shared=shared), lambda: log.shares_syncs)
                self._writer.forget(log, partial(self._rounds.submit, piece, closed))
            else:
                self._writer.forget(log, partial(self._worker.submit, partial(log.close, clean=False), closed))

        def close_all() -> None:
            in_turns(self._scheduler, logs, close_one, lambda: closed(None, None))

        self._writer.when_idle(close_all)

    def count(self) -> int:
        """Return the number of logs that are open or being opened."""
        return len(self._loaded) + len(self._opening)

    def status(self) -> list[str]:
        """Return one line for each replica that is not in service and should be."""
        lines = [f"{tp} opening" for tp in sorted(self._opening)]
        lines += [f"{tp} removing" for tp in sorted(self._removing)]
        return lines + [f"{tp} failed {reason}" for tp, reason in sorted(self._failed.items())]

    # --- Inside ---

    def _steps(
        self, tp: TopicPartition, config: TopicConfig | None, *, clean_shutdown: bool, same_process: bool = False
    ) -> Callable[[bool], Steps[OpenedReplica]]:
        return partial(
            open_steps,
            self._disk,
            tp,
            config,
            self._cache,
            clean_shutdown=clean_shutdown,
            same_process=same_process,
            bounds=self._producer_bounds,
        )

    @property
    def loaded(self) -> Mapping[TopicPartition, PartitionLog]:
        """The logs that were opened and are not taken yet."""
        return {tp: opened.log for tp, opened in self._loaded.items()}

    def _piece(self, tp: TopicPartition, steps: Callable[[bool], Steps[OpenedReplica]]) -> OpenTask[OpenedReplica]:
        return OpenTask(steps, partial(shares_syncs, self._disk, tp))

    def _open(self, tp: TopicPartition, steps: Callable[[bool], Steps[OpenedReplica]]) -> None:
        self._opening[tp] = None

        def opened(replica: OpenedReplica | None, error: BaseException | None) -> None:
            del self._opening[tp]
            if replica is not None:
                self._loaded[tp] = replica
                self._on_change(tp)
                return
            self._could_not_open(tp, error)
            if isinstance(error, DiskHindered | MemoryError):
                self._again[tp] = steps
                self._scheduler.call_later(HINDERED_RETRY_SECONDS, lambda: self._retry(tp))
            self._on_change(tp)

        self._rounds.submit(self._piece(tp, steps), opened)

    def _could_not_open(self, tp: TopicPartition, error: BaseException | None) -> None:
        self._logger.error("replica could not be opened", partition=str(tp), error=str(error))
        self._failed[tp] = str(error)

    def _retry(self, tp: TopicPartition) -> None:
        self._failed.pop(tp, None)
        self._on_change(tp)

    def _discard(self, tp: TopicPartition, log: PartitionLog, *, keep_seconds: float) -> None:
        """Close a log, and set its folder aside once no job of the log runs any more.

        A job opens files by name, and a replica that returns at once would get its files in its own folder.
        """
        log.close(clean=False)

        def move() -> None:
            self._worker.submit(lambda: set_aside(self._disk, tp), aside)

        def aside(path: str | None, error: BaseException | None) -> None:
            if isinstance(error, DiskHindered | MemoryError) and not self._closing:
                self._scheduler.call_later(HINDERED_RETRY_SECONDS, move)
                return
            self._removing.pop(tp, None)
            if path is None:
                self._logger.error("replica could not be removed", partition=str(tp), error=str(error))
                self._failed[tp] = str(error)
            elif keep_seconds:
                self._scheduler.call_later(keep_seconds, lambda: self._delete(path))
            else:
                self._delete(path)
            self._on_change(tp)

        self._writer.forget(log, move)

    def _delete(self, path: str) -> None:
        note_error = self._note_error(path, "delete")

        def deleted(_: None, error: BaseException | None) -> None:
            note_error(None, error)
            if isinstance(error, DiskHindered | MemoryError):
                self._scheduler.call_later(HINDERED_RETRY_SECONDS, lambda: self._delete(path))

        if not self._closing:
            self._worker.submit(lambda: delete_set_aside(self._disk, path), deleted)

    def _note_error(self, what: object, doing: str) -> Callable[[None, BaseException | None], None]:
        def done(_: None, error: BaseException | None) -> None:
            if error is not None:
                self._logger.error(f"{doing} failed", what=str(what), error=str(error))

        return done


def in_order(by_partition: Mapping[TopicPartition, T]) -> list[T]:
    """Return the values by topic and number: the keys are compared as tuples, the values never."""
    keys = sorted(by_partition, key=lambda tp: (tp.topic_id, tp.partition))
    return [by_partition[tp] for tp in keys]
