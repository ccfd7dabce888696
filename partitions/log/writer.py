"""Group commit over all logs of a node: one round in flight, with one job of each dirty log.

A log that becomes dirty during a round joins the next one. So a slow disk makes rounds larger, not more frequent, and
an fsync is shared by everything that was appended while the previous one ran.

The jobs of a small round run side by side on the worker's few threads, each with its own fsyncs. If the disk can sync
all of them by one call, the jobs of a large round run together, as one piece of work (`partitions/files/durable.py`):
then a round costs a few calls for each step of a job, however many jobs it has.

A log that met a full disk, or a process without descriptors or memory, is retried every second; its appended batches
stay in memory meanwhile. If a log's job cannot be taken, or cannot be handed to a worker, that log alone has failed,
and its owner is notified.
"""

from __future__ import annotations

import statistics
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, TypeVar

from partitions.files.durable import TOGETHER_MAX, together, worth_one_call
from raftlog.metrics.histogram import SIZES, Histogram
from raftlog.ports import Clock, Scheduler, Worker
from raftlog.slices import in_turns

from .job import LogJob
from .log import PartitionLog

HINDERED_RETRY_S = 1.0

JOBS_PER_TURN = 64
"""Jobs taken in one turn of the loop, some thirty microseconds each; a larger round takes several turns."""

RESULTS_PER_TURN = 64
"""Jobs of a shared round that are completed in one turn of the loop, some hundred microseconds each.

A follower owes its leader one acknowledgement for all of them.
"""

RECENT_JOBS = 64
"""The number of jobs whose durations are remembered."""

T = TypeVar("T")

OnStable = Callable[[], None]


class RunningJob(NamedTuple):
    """A job, and its completion callback."""

    log: PartitionLog
    job: LogJob
    on_stable: OnStable
    begun: float = 0.0
    """Monotonic seconds."""


@dataclass(frozen=True, slots=True)
class WriterFacts:
    """How long jobs take, in seconds: the fsyncs, and what they wait for."""

    running: float
    """The age of the oldest job in progress; 0 if there is none."""
    median: float
    """The median of recent jobs."""
    longest: float
    count: int
    """The number of recent jobs."""


class LogWriter:
    """The rounds of jobs of a node's logs.

    Invariant: each log of `_forgotten` is running or held, and none of them is in `_dirty` or `_hindered`.
    """

    def __init__(self, worker: Worker, scheduler: Scheduler, clock: Clock | None = None) -> None:
        """`clock` measures how long jobs take; None: they are not measured."""
        self._clock = clock
        self._begun: dict[PartitionLog, float] = {}
        """The running logs → the begin of their jobs, in monotonic seconds."""
        self._recent: deque[float] = deque(maxlen=RECENT_JOBS)
        self._worker = worker
        self._scheduler = scheduler
        self._dirty: dict[PartitionLog, OnStable] = {}
        """Dirty logs in the order in which they became dirty, each once."""
        self._running: set[PartitionLog] = set()
        """Logs whose job of the present round is not done."""
        self._hindered: set[PartitionLog] = set()
        """Logs that a timer will retry."""
        self._held: set[PartitionLog] = set()
        """Logs in whose folder another component works."""
        self._closed: weakref.WeakSet[PartitionLog] = weakref.WeakSet()
        self._forgotten: dict[PartitionLog, list[Callable[[], None]]] = {}
        """Logs that were forgotten while their last job ran → the callbacks for its end."""
        self._starting = False
        """Whether a round is about to begin, or some of its jobs were not taken yet."""
        self._when_idle: list[Callable[[], None]] = []
        self.rounds = 0
        self.jobs = 0
        self.logs_of_rounds = Histogram(SIZES)
        """The number of logs that each round wrote."""
        self.batches_of_jobs = Histogram(SIZES)
        """The number of batches that each job with some wrote."""
        self._logs_of_round = 0

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight and nothing waits, apart from hindered logs."""
        return not (self._running or self._dirty or self._starting)

    def facts(self) -> WriterFacts:
        """Return how long jobs take."""
        now = self._now()
        oldest = min(self._begun.values(), default=now)
        recent = list(self._recent)
        median = statistics.median(recent) if recent else 0.0
        return WriterFacts(max(0.0, now - oldest), median, max(recent, default=0.0), len(recent))

    def _now(self) -> float:
        return 0.0 if self._clock is None else self._clock.monotonic()

    def dirty(self, log: PartitionLog, on_stable: OnStable) -> None:
        """Schedule a job of `log`.

        `on_stable` is called, on this thread, each time a job of the log is done: `log.stable_end_offset` may have
        moved, or the log may be `hindered` or `failed`.
        """
        if log not in self._forgotten:
            self._dirty[log] = on_stable
            self._start_soon()

    def forget(self, log: PartitionLog, done: Callable[[], None]) -> None:
        """Take no new job of a log that is being closed.

        `done` is called, never synchronously, when no job runs any more: before that the log's folder must not be
        touched.
        """
        self._dirty.pop(log, None)
        self._hindered.discard(log)
        self._closed.add(log)
        if log in self._running or log in self._held:
            self._forgotten.setdefault(log, []).append(done)
        else:
            self._scheduler.call_soon(done)

    def hold(self, log: PartitionLog) -> bool:
        """Let `forget` wait for `give_back`: the caller works in the folder. Return False if the log is closed."""
        if log in self._closed:
            return False
        self._held.add(log)
        return True

    def give_back(self, log: PartitionLog) -> None:
        """End a `hold`; harmless without one."""
        self._held.discard(log)
        if log not in self._running:
            for callback in self._forgotten.pop(log, ()):
                callback()

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Call `callback` once the writer is idle, and soon if it is now."""
        self._when_idle.append(callback)
        if self.idle:
            self._scheduler.call_soon(self._tell_idle)

    def _start_soon(self) -> None:
        if not self._starting and not self._running:
            # Deferred, so that logs that become dirty in the same event share the round.
            self._starting = True
            self._scheduler.call_soon(self._start_round)

    def _start_round(self) -> None:
        jobs = self.jobs
        count = len(self._dirty)
        if worth_one_call(count):
            self._take(min(count, TOGETHER_MAX), [])
        else:
            self._take(count, None)
        self.rounds += self.jobs > jobs

    def _take(self, left: int, shared: list[RunningJob] | None) -> None:
        """Take the next of `left` jobs of a round, and the rest in a later turn of the loop.

        This is a loop of its own, because its items come and go: a log that becomes dirty meanwhile joins the round,
        and one that is closed leaves it.

        `shared`: the jobs so far that run together if they stay many; None: each runs alone.
        """
        now = self._now()
        some = list(islice(self._dirty.items(), min(left, JOBS_PER_TURN)))
        for log, on_stable in some:
            del self._dirty[log]
            job = self._job_of(log, on_stable)
            if job is not None:
                self._running.add(log)
                self.jobs += 1
                self._logs_of_round += 1
                if batches := sum([len(write.batches) for write in job.writes]):
                    self.batches_of_jobs.observe(batches)
                running = RunningJob(log, job, on_stable, now)
                self._begun[log] = now
                if shared is not None and log.shares_syncs:
                    shared.append(running)
                else:
                    self._submit(running)
        left -= len(some)
        if left and self._dirty:
            self._scheduler.call_soon(lambda: self._take(left, shared))
            return
        self._starting = False
        if self._logs_of_round:
            self.logs_of_rounds.observe(self._logs_of_round)
            self._logs_of_round = 0
        if shared and worth_one_call(len(shared)):
            self._submit_together(shared)
        else:
            for running in shared or ():
                self._submit(running)
        self._go_on()

    def _go_on(self) -> None:
        """If this round has ended, begin the next one, or report that there is none."""
        if self._running or self._starting:
            return
        if self._dirty:
            self._start_soon()
        else:
            self._tell_idle()

    def _job_of(self, log: PartitionLog, on_stable: OnStable) -> LogJob | None:
        try:
            return log.take_job()
        except Exception as error:  # noqa: BLE001  it is this log's: the others of the round are written all the same
            log.broke(error)
            self._scheduler.call_soon(on_stable)
            return None

    def _submit(self, running: RunningJob) -> None:
        self._hand_over(running.job.run, lambda _, error: self._done(running, error))

    def _submit_together(self, all_running: Sequence[RunningJob]) -> None:
        disk = all_running[0].job.disk  # The one that a node has.

        def run() -> list[Exception | None]:
            return together(disk, [running.job.steps(shared=True) for running in all_running])

        def done(outcomes: list[Exception | None] | None, error: BaseException | None) -> None:
            errors = [error] * len(all_running) if outcomes is None else outcomes
            ended = list(zip(all_running, errors, strict=True))
            in_turns(self._scheduler, ended, lambda one: self._done(*one), per_turn=RESULTS_PER_TURN)

        self._hand_over(run, done)

    def _hand_over(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        try:
            self._worker.submit(work, done)
        except Exception as error:  # noqa: BLE001  as if the worker had met it
            failed = error
            self._scheduler.call_soon(lambda: done(None, failed))

    def _done(self, running: RunningJob, error: BaseException | None) -> None:
        log = running.log
        on_stable = running.on_stable
        self._running.discard(log)
        self._begun.pop(log, None)
        self._recent.append(self._now() - running.begun)
        try:
            log.job_done(running.job, error)
        except Exception as broken:  # noqa: BLE001  it is this log's
            log.broke(broken)
        forgotten = None if log in self._held else self._forgotten.pop(log, None)
        if forgotten is None and log not in self._forgotten:
            self._look_again(log, on_stable)
        self._go_on()
        try:
            on_stable()
        finally:
            for callback in forgotten or ():
                callback()

    def _look_again(self, log: PartitionLog, on_stable: OnStable) -> None:
        """Schedule the remaining work after a job, now or after a retry delay."""
        if not log.full:
            if log.needs_job:
                self._dirty.setdefault(log, on_stable)
        elif log not in self._hindered:
            self._hindered.add(log)
            self._scheduler.call_later(HINDERED_RETRY_S, lambda: self._retry(log, on_stable))

    def _retry(self, log: PartitionLog, on_stable: OnStable) -> None:
        if log in self._hindered:
            self._hindered.discard(log)
            if log.full and log.needs_job:
                self.dirty(log, on_stable)

    def _tell_idle(self) -> None:
        if self.idle:
            waiting, self._when_idle = self._when_idle, []
            for callback in waiting:
                callback()
