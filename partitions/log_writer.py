"""Group commit over all logs of a node: one round in flight, each dirty log's job once in it.

Whatever becomes dirty while a round is on its way goes into the next one. So a slow disk makes rounds larger, not more
of them, and an fsync is shared by everything that was appended while the one before it ran. The jobs of one round run
side by side on the worker's few threads.

A log that met a full disk is tried again every second; what was appended to it stays in memory meanwhile.

What is *not* here: threads (the `Worker`'s), and what a job does (`log_job.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from raftlog.ports import Scheduler, Worker

from .log import PartitionLog
from .log_job import LogJob

FULL_DISK_RETRY_S = 1.0

OnStable = Callable[[], None]


class LogWriter:
    """Invariant: `_in_flight` counts the jobs of the present round that are not done."""

    def __init__(self, worker: Worker, scheduler: Scheduler) -> None:
        self._worker = worker
        self._scheduler = scheduler
        self._dirty: dict[PartitionLog, OnStable] = {}
        """In the order in which they became dirty, each once."""
        self._in_flight = 0
        self._starting = False
        self._when_idle: list[Callable[[], None]] = []
        self.rounds = 0
        self.jobs = 0

    @property
    def idle(self) -> bool:
        """Nothing is in flight and nothing waits (a log that waits for room on a full disk apart)."""
        return not (self._in_flight or self._dirty or self._starting)

    def dirty(self, log: PartitionLog, on_stable: OnStable) -> None:
        """`log` has something for the disk. `on_stable` is called, on this thread, each time a job of it is done:
        `log.stable_end_offset` may have moved, or the log may be `full` or `failed` now."""
        self._dirty[log] = on_stable
        self._start_soon()

    def forget(self, log: PartitionLog) -> None:
        """The log is being closed: no new job of it is taken. One that runs still comes to its end."""
        self._dirty.pop(log, None)

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Once, as soon as it is idle; soon if it is now."""
        self._when_idle.append(callback)
        if self.idle:
            self._scheduler.call_soon(self._tell_idle)

    def _start_soon(self) -> None:
        if not self._starting and not self._in_flight:
            # Not at once: whoever else becomes dirty in this event shares the round.
            self._starting = True
            self._scheduler.call_soon(self._start_round)

    def _start_round(self) -> None:
        self._starting = False
        dirty, self._dirty = self._dirty, {}
        taken = [(log, job, on_stable) for log, on_stable in dirty.items() if (job := log.take_job()) is not None]
        self._in_flight = len(taken)
        self.rounds += bool(taken)
        self.jobs += len(taken)
        for log, job, on_stable in taken:
            self._submit(log, job, on_stable)
        if not taken:
            self._tell_idle()

    def _submit(self, log: PartitionLog, job: LogJob, on_stable: OnStable) -> None:
        def done(_: None, error: BaseException | None) -> None:
            self._in_flight -= 1
            log.job_done(job, error)
            if log.full:
                self._scheduler.call_later(FULL_DISK_RETRY_S, lambda: self._retry(log, on_stable))
            elif log.needs_job:
                self._dirty.setdefault(log, on_stable)
            if not self._in_flight:
                if self._dirty:
                    self._start_soon()
                else:
                    self._tell_idle()
            on_stable()

        self._worker.submit(job.run, done)

    def _retry(self, log: PartitionLog, on_stable: OnStable) -> None:
        if log.full and log.needs_job:
            self._dirty.setdefault(log, on_stable)
            self._start_soon()

    def _tell_idle(self) -> None:
        if self.idle:
            waiting, self._when_idle = self._when_idle, []
            for callback in waiting:
                callback()
