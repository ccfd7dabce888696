"""The scrubber: every byte of every replica is read again and again, slowly, so that rot is found while others know.

One replica after the other, in steps of about a megabyte on a worker's thread, with pauses that keep the rate below
`bytes_per_second`; then nothing at all until the next pass is due. Each process begins its passes at a replica that it
draws, so that one that is started often gets around, too. `scrub_now` puts replicas in front, at a higher rate, also of
the one that is being read.

    damaged                       what follows
    a segment                     the log is told (`damage_found`): its replica repairs itself from a peer (S9)
    an index                      removed: it is made anew in memory, and on disk at the next start
    leader epochs, checkpoint     written again from memory
    a producer snapshot           removed: an older one does, with more batches
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from partitions.driver.driver import PartitionDriver
from partitions.files.index_files import index_names
from raftlog.config import MIB
from raftlog.errors import RaftlogError
from raftlog.model import TopicPartition
from raftlog.ports import Disk, Logger, Random, Scheduler, Timer, Worker

from .scrub_check import Finding, FolderCheck, What
from .scrub_plan import ScrubPlan, plan_of_log, still_stands

STEP_BYTES = 1 * MIB
"""One worker's turn: a millisecond or two where the page cache has it."""

NOW_BYTES_PER_SECOND = 64 * MIB
"""For who waits for the end: fast, and still no more than a part of a core."""

FIRST_PASS_SECONDS = (60.0, 120.0)
"""Nodes that start together have better things to do, and do not pass over their disks together."""

AFTER_ERROR_SECONDS = 1.0
"""An exception that nobody foresaw ends the check of one replica. The others are read on, after a while."""

FINDINGS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Found:
    """A finding, and whose it is. `name` is for people: `orders/3`."""

    topic_partition: TopicPartition
    name: str
    finding: Finding

    def __str__(self) -> str:
        return f"{self.name}: {self.finding}"


@dataclass(slots=True)
class ScrubRun:
    """What was asked for with `scrub_now`, and how far it is."""

    wanted: int = 0
    """Replicas."""
    done: int = 0
    total_bytes: int = 0
    bytes_read: int = 0
    findings: list[Found] = field(default_factory=list)

    @property
    def running(self) -> bool:
        return self.done < self.wanted


@dataclass(slots=True)
class _Scrub:
    """The check of one replica."""

    driver: PartitionDriver
    check: FolderCheck
    urgent: bool
    told: int = 0
    """Findings that were dealt with."""


class Scrubber:
    """Of one broker. See the module.

    Invariant: at most one step is under way, and while one is no timer of ours is.
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
        """`bytes_per_second` 0: only `scrub_now` reads anything. `interval_seconds`: from the end of a pass to the
        beginning of the next."""
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
        """One of the pass, while urgent ones are read."""
        self._passing = False
        self._stepping = False
        self._timer: Timer | None = None
        """A pause is on."""
        self._debt = 0
        """Read since the last pause, in bytes."""
        self.run = ScrubRun()
        """The latest that was asked for."""
        self.passes = 0
        """Completed since the start."""
        self.findings = 0
        """Since the start."""

    def start(self) -> None:
        """Begin the first pass in a while."""
        if self._bytes_per_second:
            self._scheduler.call_later(self._random.uniform(*FIRST_PASS_SECONDS), self._begin_pass)

    def scrub_now(self, wanted: Collection[TopicPartition]) -> ScrubRun:
        """Check these replicas first, as far as they are in service here. Adds to the run that is under way."""
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

    # --- Whose turn it is ---

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
        """Begin, where nothing is being read. Who asked does not wait for a pause of the pass: at a low rate it is
        long."""
        if self._timer is not None and self._urgent and not (self._current and self._current.urgent):
            self._timer.cancel()
            self._timer = None
        if not self._stepping and self._timer is None:
            self._advance()

    def _turn(self) -> _Scrub | None:
        """Whose next step it is; None: nobody's."""
        current = self._current
        if self._urgent and current is not None and not current.urgent:
            # A replica may take the pass hours.
            self._parked = current
            self._current = None
        while (scrub := self._current or self._next()) is not None:
            self._current = scrub
            # Also the end of all reading when the broker stops: then no replica is in service.
            if self._in_service(scrub.driver.topic_partition) is scrub.driver:
                return scrub
            self._end(scrub)
        return None

    def _next(self) -> _Scrub | None:
        """Another replica."""
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
        """Nothing more of this replica."""
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
            # The loop reports it. Whatever replica it was about is not looked at again in this pass.
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
        """Many small replicas make one pause, not many."""
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
            return  # What it is about is no part of the log any more.
        self.findings += 1
        if scrub.urgent and len(self.run.findings) < FINDINGS_MAX:
            self.run.findings.append(Found(driver.topic_partition, driver.name, finding))
        self._logger.error("scrubber found damage", partition=driver.name, file=finding.file, detail=str(finding))
        match finding.what:
            case What.SEGMENT:
                driver.on_load_failed(log.damage_in(finding.base_offset, f"{plan.path}/{finding}"))
            case What.LEADER_EPOCHS | What.CHECKPOINT:
                log.rewrite_small_files()
                driver.configure(log.config)  # Nothing else is due, so the writer has to be told.
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
