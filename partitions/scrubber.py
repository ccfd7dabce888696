"""The scrubber: every byte of every replica is read again and again, slowly, so that rot is found while others know.

One replica after the other, in steps of about a megabyte on a worker's thread, with pauses that keep the rate below
`bytes_per_second`; then nothing at all until the next pass is due. Each process begins its passes at a replica that it
draws, so that one that is started often gets around, too. `scrub_now` puts replicas in front, at a higher rate.

    damaged                       what follows
    a segment                     the log is told (`damage_found`): its replica repairs itself from a peer (S9)
    an index                      removed: it is made anew in memory, and on disk at the next start
    leader epochs, checkpoint     written again from memory
    a producer snapshot           removed: an older one does, with more batches

What is *not* here: reading and judging (`scrubber_check.py`), repairs (`replica_repair.py`), time of day.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from raftlog.config import MIB
from raftlog.errors import RaftlogError
from raftlog.model import TopicPartition
from raftlog.ports import Disk, Random, Scheduler, Worker

from .driver import PartitionDriver
from .driver_ports import Logger
from .index_files import index_names
from .log_slice import LogDamaged
from .scrubber_check import Finding, FolderCheck, What

STEP_BYTES = 1 * MIB
"""One worker's turn: a millisecond or two where the page cache has it."""

NOW_BYTES_PER_SECOND = 64 * MIB
"""For who waits for the end: fast, and still no more than a part of a core."""

FIRST_PASS_SECONDS = (60.0, 120.0)
"""Nodes that start together have better things to do, and do not pass over their disks together."""

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


class Scrubber:
    """Of one broker. See the module.

    Invariant: at most one step is under way.
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
        self._busy = False
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

    # --- Inside ---

    def _begin_pass(self) -> None:
        replicas = sorted(self._drivers())
        if not replicas:
            self._end_pass()
            return
        first = self._random.randrange(0, len(replicas))
        self._queue.extend(replicas[first:] + replicas[:first])
        self._go_on()

    def _end_pass(self) -> None:
        self.passes += 1
        self._scheduler.call_later(self._interval_seconds, self._begin_pass)

    def _go_on(self) -> None:
        """The next replica, where none is being read."""
        while not self._busy and (self._urgent or self._queue):
            urgent = bool(self._urgent)
            tp = self._urgent.popleft() if urgent else self._queue.popleft()
            driver = self._drivers().get(tp)
            if driver is None or driver.log.failed is not None:
                self._finished(urgent=urgent)
                continue
            self._busy = True
            self._step(driver, FolderCheck(driver.log.scrub_plan(), may_be_gone=True), urgent=urgent)

    def _step(self, driver: PartitionDriver, check: FolderCheck, *, urgent: bool) -> None:
        known, before = len(check.findings), check.bytes_read

        def done(cost: int | None, error: BaseException | None) -> None:
            if self._drivers().get(driver.topic_partition) is not driver:
                self._end_of(urgent=urgent)
                return
            if urgent:
                self.run.bytes_read += check.bytes_read - before
            for finding in check.findings[known:]:
                self._found(driver, check, finding, urgent=urgent)
            if error is not None:
                driver.on_load_failed(error)
            if error is not None or check.done or driver.log.failed is not None:
                self._end_of(urgent=urgent)
            else:
                self._pause(cost or 0, lambda: self._step(driver, check, urgent=urgent), urgent=urgent)

        self._worker.submit(lambda: check.step(STEP_BYTES), done)

    def _end_of(self, *, urgent: bool) -> None:
        """Nothing more of this replica."""

        def next_one() -> None:
            self._busy = False
            self._finished(urgent=urgent)
            self._go_on()

        self._pause(0, next_one, urgent=urgent)

    def _finished(self, *, urgent: bool) -> None:
        if urgent:
            self.run.done += 1
        elif not self._queue:
            self._end_pass()

    def _pause(self, cost: int, then: Callable[[], None], *, urgent: bool) -> None:
        """Many small replicas make one pause, not many."""
        self._debt += cost
        rate = NOW_BYTES_PER_SECOND if urgent else self._bytes_per_second
        if self._debt < STEP_BYTES or not rate:
            self._scheduler.call_soon(then)
            return
        seconds, self._debt = self._debt / rate, 0
        self._scheduler.call_later(seconds, then)

    # --- Findings ---

    def _found(self, driver: PartitionDriver, check: FolderCheck, finding: Finding, *, urgent: bool) -> None:
        log = driver.log
        if not log.still_has(check.plan, finding.base_offset):
            return  # Batches went since; the next pass reads what is there then.
        self.findings += 1
        if urgent and len(self.run.findings) < FINDINGS_MAX:
            self.run.findings.append(Found(driver.topic_partition, driver.name, finding))
        self._logger.error("scrubber found damage", partition=driver.name, file=finding.file, detail=str(finding))
        match finding.what:
            case What.SEGMENT:
                detail = f"{check.plan.path}/{finding}"
                driver.on_load_failed(LogDamaged(detail, finding.base_offset, check.plan.generation))
            case What.LEADER_EPOCHS | What.CHECKPOINT:
                log.rewrite_small_files()
                driver.configure(log.config)  # Nothing else is due, so the writer has to be told.
            case What.INDEX:
                self._remove(check, index_names(finding.base_offset))
            case What.PRODUCERS:
                self._remove(check, (finding.file,))

    def _remove(self, check: FolderCheck, names: Collection[str]) -> None:
        def work() -> None:
            for name in names:
                self._disk.remove(f"{check.plan.path}/{name}")

        def done(_: None, error: BaseException | None) -> None:
            if error is not None and not isinstance(error, RaftlogError):
                raise error
            if error is not None:
                self._logger.error("damaged file could not be removed", files=list(names), error=str(error))

        self._worker.submit(work, done)
