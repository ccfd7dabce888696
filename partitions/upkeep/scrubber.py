"""The scrubber: reads every byte of every replica periodically, slowly, so that rot is found while others have copies.

It reads one replica after the other, in steps of about a megabyte on a worker's thread, with pauses that keep the rate
below `bytes_per_second`; then nothing until the next pass is due. Each process begins its passes at a random replica,
so that a process that is restarted often covers all of them, too. `scrub_now` puts replicas first, at a higher rate,
including the one that is being read.

    damaged                       consequence
    a segment                     the log gets `damage_found`: its replica repairs itself from a peer (S9)
    an index                      removed: rebuilt in memory, and on disk at the next start
    leader epochs, checkpoint     written again from memory
    a producer snapshot           removed: an older one is used, with more batches
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping

import msgspec

from partitions.driver.driver import PartitionDriver
from partitions.files.index_files import index_names
from raftlog.config import MIB
from raftlog.errors import RaftlogError
from raftlog.model import TopicPartition
from raftlog.ports import Disk, Logger, Random, Scheduler, Timer, Worker

from .scrub_check import Finding, FolderCheck, What
from .scrub_plan import ScrubPlan, plan_of_log, still_stands

STEP_BYTES = 1 * MIB
"""One step of a worker: a millisecond or two if the page cache has it."""

NOW_BYTES_PER_SECOND = 64 * MIB
"""The rate while a caller waits for the end: fast, but only a part of a core."""

FIRST_PASS_SECONDS = (60.0, 120.0)
"""The range of the delay before the first pass: nodes that start together have other work, and spread their passes."""

AFTER_ERROR_SECONDS = 1.0
"""The pause after an unforeseen exception, which ends the check of one replica only."""

FINDINGS_MAX = 1_000


class Found(msgspec.Struct, frozen=True):
    """A finding and its replica. `name` is for people: `orders/3`."""

    topic_partition: TopicPartition
    name: str
    finding: Finding

    def __str__(self) -> str:
        return f"{self.name}: {self.finding}"


class ScrubRun(msgspec.Struct):
    """The progress of a `scrub_now`."""

    wanted: int = 0
    """Number of replicas."""
    done: int = 0
    total_bytes: int = 0
    bytes_read: int = 0
    findings: list[Found] = []

    @property
    def running(self) -> bool:
        return self.done < self.wanted


class _Scrub(msgspec.Struct):
    """The check of one replica."""

    driver: PartitionDriver
    check: FolderCheck
    urgent: bool
    told: int = 0
    """The number of findings that were handled."""


class Scrubber:
    """The scrubber of one broker.

    Invariant: at most one step is in flight, and while one is, no timer is set.
    """

    def __init__(
        self,
        drivers: Callable[[], Mapping[TopicPartition, PartitionDriver]],
        disk: Disk,
        scheduler: Scheduler,
        worker: Worker,
        random: Random,
        logger: Logger,
        *,
        bytes_per_second: int,
        interval_seconds: float,
    ) -> None:
        """`bytes_per_second` 0: only `scrub_now` reads. `interval_seconds`: from the end of a pass to the next."""
        self._drivers = drivers
        self._disk = disk
        self._scheduler = scheduler
        self._worker = worker
        self._random = random
        self._logger = logger
        self._bytes_per_second = bytes_per_second
        self._interval_seconds = interval_seconds
        self._queue: deque[TopicPartition] = deque()
        self._urgent: deque[TopicPartition] = deque()
        self._current: _Scrub | None = None
        self._parked: _Scrub | None = None
        """The replica of the pass, while urgent ones are read."""
        self._passing = False
        self._stepping = False
        self._timer: Timer | None = None
        """Set during a pause."""
        self._debt = 0
        """The bytes read since the last pause."""
        self.run = ScrubRun()
        """The latest `scrub_now`."""
        self.passes = 0
        """Passes completed since the start."""
        self.findings = 0
        """Findings since the start."""

    def start(self) -> None:
        """Schedule the first pass."""
        if self._bytes_per_second:
            self._scheduler.call_later(self._random.uniform(*FIRST_PASS_SECONDS), self._begin_pass)

    def scrub_now(self, wanted: Collection[TopicPartition]) -> ScrubRun:
        """Check these replicas first, as far as they are in service here. Adds to the run in progress."""
        if not self.run.running:
            self.run = ScrubRun()
        drivers = self._drivers()
        for tp in sorted(wanted):
            if tp in drivers and tp not in self._urgent:
                self._urgent.append(tp)
                self.run.wanted += 1
                self.run.total_bytes += drivers[tp].log.size_bytes
        self._go_on()
        return self.run

    # --- Turns ---

    def _begin_pass(self) -> None:
        replicas = sorted(self._drivers())
        first = self._random.randrange(0, len(replicas)) if replicas else 0
        self._queue.extend(replicas[first:] + replicas[:first])
        self._passing = True
        self._go_on()

    def _end_pass(self) -> None:
        self._passing = False
        self.passes += 1
        self._scheduler.call_later(self._interval_seconds, self._begin_pass)

    def _go_on(self) -> None:
        """Begin a step unless one is in flight.

        Urgent replicas do not wait for a pause of the pass: at a low rate it is long.
        """
        if self._timer is not None and self._urgent and not (self._current and self._current.urgent):
            self._timer.cancel()
            self._timer = None
        if not self._stepping and self._timer is None:
            self._advance()

    def _turn(self) -> _Scrub | None:
        """Return the check that has the next step; None if there is none."""
        current = self._current
        if self._urgent and current is not None and not current.urgent:
            # A replica of the pass may take hours.
            self._parked = current
            self._current = None
        while (scrub := self._current or self._next()) is not None:
            self._current = scrub
            # This also ends all reading when the broker stops: then no replica is in service.
            if self._in_service(scrub.driver.topic_partition) is scrub.driver:
                return scrub
            self._end(scrub)
        return None

    def _next(self) -> _Scrub | None:
        """Return the check of another replica."""
        while self._urgent or self._parked or self._queue:
            if self._parked is not None and not self._urgent:
                parked, self._parked = self._parked, None
                return parked
            urgent = bool(self._urgent)
            driver = self._in_service((self._urgent or self._queue).popleft())
            if driver is not None:
                try:
                    return _Scrub(driver, FolderCheck(plan_of_log(driver.log), in_service=True), urgent)
                except BaseException:
                    self.run.done += urgent
                    raise
            self.run.done += urgent
        if self._passing:
            self._end_pass()
        return None

    def _in_service(self, tp: TopicPartition) -> PartitionDriver | None:
        driver = self._drivers().get(tp)
        return None if driver is None or driver.log.failed is not None else driver

    def _end(self, scrub: _Scrub) -> None:
        """End the check of this replica."""
        self._current = None
        self.run.done += scrub.urgent
        scrub.check.close()

    # --- Steps ---

    def _advance(self) -> None:
        self._timer = None
        try:
            scrub = self._turn()
            if scrub is not None:
                before = scrub.check.bytes_read
                self._worker.submit(
                    lambda: scrub.check.step(STEP_BYTES),
                    lambda cost, error: self._stepped(scrub, cost or 0, scrub.check.bytes_read - before, error),
                )
                self._stepping = True
        except BaseException:
            # The loop reports it. The replica that caused it is not checked again in this pass.
            self._timer = self._scheduler.call_later(AFTER_ERROR_SECONDS, self._advance)
            raise

    def _stepped(self, scrub: _Scrub, cost: int, bytes_read: int, error: BaseException | None) -> None:
        self._stepping = False
        over = True  # unless nothing raises
        try:
            self._take_findings(scrub, error)
            over = error is not None or scrub.check.done
        finally:
            if scrub.urgent:
                self.run.bytes_read += bytes_read
            try:
                if over:
                    self._end(scrub)
            finally:
                self._pause(cost, urgent=scrub.urgent)

    def _take_findings(self, scrub: _Scrub, error: BaseException | None) -> None:
        driver = scrub.driver
        findings = scrub.check.findings
        if self._drivers().get(driver.topic_partition) is not driver:
            return
        for finding in findings[scrub.told :]:
            scrub.told += 1
            self._found(scrub, finding)
        if error is not None:
            driver.on_load_failed(error)

    def _pause(self, cost: int, *, urgent: bool) -> None:
        """Pause by the bytes read: many small replicas make one pause, not many."""
        self._debt += cost
        rate = NOW_BYTES_PER_SECOND if urgent else self._bytes_per_second
        seconds = 0.0
        if self._debt >= STEP_BYTES:
            seconds, self._debt = self._debt / rate, 0
        self._timer = self._scheduler.call_later(seconds, self._advance)

    # --- Findings ---

    def _found(self, scrub: _Scrub, finding: Finding) -> None:
        driver = scrub.driver
        plan = scrub.check.plan
        log = driver.log
        if not still_stands(plan, finding.base_offset, log):
            return  # The file is no longer part of the log.
        self.findings += 1
        if scrub.urgent and len(self.run.findings) < FINDINGS_MAX:
            self.run.findings.append(Found(driver.topic_partition, driver.name, finding))
        self._logger.error("scrubber found damage", partition=driver.name, file=finding.file, detail=str(finding))
        match finding.what:
            case What.SEGMENT:
                driver.on_load_failed(log.damage_in(finding.base_offset, f"{plan.path}/{finding}"))
            case What.LEADER_EPOCHS | What.CHECKPOINT:
                log.rewrite_small_files()
                driver.configure(log.config)  # Nothing else is due, so this schedules the job.
            case What.INDEX:
                self._remove(plan, index_names(finding.base_offset))
            case What.PRODUCERS:
                self._remove(plan, (finding.file,))

    def _remove(self, plan: ScrubPlan, names: Collection[str]) -> None:
        def work() -> None:
            for name in names:
                self._disk.remove(f"{plan.path}/{name}")

        def done(_: None, error: BaseException | None) -> None:
            if error is not None and not isinstance(error, RaftlogError):
                raise error
            if error is not None:
                self._logger.error("damaged file could not be removed", files=list(names), error=str(error))

        self._worker.submit(work, done)
