"""A log compared with a simple model: a list of batches, and the length that must survive.

Hypothesis drives appends, truncations, restarts, jobs that are taken, run and reported as separate steps, full disks,
failed fsyncs, process crashes and power failures in the middle of jobs and of recoveries, clean closes, and reads. The
disk is the simulator's: it loses data that was not fsynced, in any order. After every step the log must equal the
model; after a crash it must have every stable batch, and no batch that was never appended there.
"""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass, field
from unittest import mock

import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from jepsen_like.simulator.world.disk import SimDisk, SimFile, SimulatedCrash
from partitions.files.damage import LogDamaged
from partitions.log import pending as log_pending
from partitions.log.job import LogJob
from partitions.log.producer_replay import ProducerReplay
from partitions.log.tail import FetchCache
from partitions.producers.control_batches import checked_control_of
from raftlog.config import TopicConfig
from raftlog.errors import DiskFull
from raftlog.model import Offset
from raftlog.records.batch import BatchHeader, Control, parse_header
from tests.support.partitions.storage import PATH, Batch, batch, marker, read_batches, recover_log


@dataclass
class SeenBatches:
    """Stands for producers and transactions: its snapshot contains every batch, and the content of control batches."""

    seen: list[tuple[int, int, int]] = field(default_factory=list)

    def restore(self, snapshot: bytes | None) -> None:
        self.seen = [] if snapshot is None else [tuple(map(int, pair.split(b"@"))) for pair in snapshot.split()]  # type: ignore[misc]

    def replay(self, header: BatchHeader, control: Control | None = None) -> None:
        self.seen.append((header.base_offset, header.leader_epoch, said_by(control)))

    def lacks_past(self) -> None:
        """The seen batches are derived from the log's content, and begin where it does."""

    def empty(self) -> SeenBatches:
        return SeenBatches()

    def become(self, other: SeenBatches) -> None:
        self.seen = other.seen

    def snapshot(self) -> bytes:
        return b" ".join(b"%d@%d@%d" % one for one in self.seen)


def said_by(control: Control | None) -> int:
    """-1: it is no control batch."""
    return -1 if control is None else control.entries[0].producer_id


@dataclass
class Twin:
    """The log, as a list."""

    start: int = 0
    restart_at: int = 0
    """Its start while it is empty."""
    batches: list[Batch] = field(default_factory=list)
    stable: int = 0

    @property
    def end(self) -> int:
        return self.batches[-1].end_offset if self.batches else self.restart_at

    def truncate(self, end_offset: int) -> list[Batch]:
        gone = [one for one in self.batches if one.end_offset > end_offset]
        if gone:
            self.batches = self.batches[: -len(gone)]
            self.restart_at = self.batches[-1].end_offset if self.batches else gone[0].header.base_offset
        self.start = min(self.start, self.end)
        self.stable = min(self.stable, self.end)
        return gone


class LogMachine(RuleBasedStateMachine):
    flush = "fsync"

    def __init__(self) -> None:
        super().__init__()
        real, machine = SimFile.pread, self

        def pread_cached(file: SimFile, length: int, position: int) -> bytes | None:
            return None if machine.cold else real(file, length, position)

        self.patches = contextlib.ExitStack()
        self.patches.enter_context(mock.patch.object(log_pending, "CHECKPOINT_INTERVAL_BYTES", 1500))
        self.patches.enter_context(mock.patch.object(SimFile, "pread_cached", pread_cached))
        self.cold = False
        self.disk = SimDisk()
        self.twin = Twin()
        self.ever: dict[tuple[int, int], bytes] = {}
        """(base offset, epoch) → the batch that has this name permanently."""
        self.ever_last: set[tuple[int, int]] = set()
        """(last offset, epoch) of each of them."""
        self.epochs_used = {0}
        self.epoch = 0
        self.epoch_is_over = False
        """Another leader may have written in it at offsets that this log does not have: it must not continue in it."""
        self.gone: list[Batch] = []
        """The batches dropped by the last truncation, if nothing was appended since."""
        self.job: LogJob | None = None
        self.job_ran = False
        self.restarted = False
        self.highest_start = 0
        self.loss_unreported = False
        self.config = TopicConfig(segment_bytes=400, index_interval_bytes=100, flush=self.flush)  # type: ignore[arg-type]

    @initialize(cache_bytes=st.sampled_from([0, 300, 1 << 20]))
    def begin(self, cache_bytes: int) -> None:
        self.cache = FetchCache(cache_bytes)
        self.disk.make_directory("partitions")
        self.disk.fsync_directory("")
        self.open(clean=False)

    def open(self, *, clean: bool) -> None:
        self.producers = SeenBatches()
        self.log, self.recovery = recover_log(
            self.disk, PATH, self.config, clean_shutdown=clean, producers=self.producers, cache=self.cache
        )
        self.job = None
        self.replay: ProducerReplay | None = None
        assert not self.log.producers.stale
        self.gone = []
        self.epoch_is_over = True

    # --- The owner's actions ---

    @rule(count=st.integers(0, 4), size=st.sampled_from([1, 40, 150, 600]), fresh_epoch=st.booleans())
    def append(self, count: int, size: int, fresh_epoch: bool) -> None:
        """Without records: a marker."""
        latest = self.log.epochs.latest_epoch
        base = self.log.log_end_offset
        ends = [offset + 1 for offset, epoch in self.ever_last if epoch == latest]
        if not fresh_epoch and self.twin.batches and ends and max(ends) == base:
            # The leader of the last remaining epoch continued to write: no other log has more of it than this one.
            self.epoch, self.epoch_is_over = latest, False
        elif fresh_epoch or self.epoch < latest or self.epoch_is_over:
            # Any epoch that was never used, also one below the truncated ones.
            unused = [
                epoch for epoch in range(max(latest, 0), max(self.epochs_used) + 3) if epoch not in self.epochs_used
            ]
            self.epoch = unused[0]
            self.epochs_used.add(self.epoch)
            self.epoch_is_over = False
        self.put(batch(base, count=count, size=size, epoch=self.epoch) if count else marker(base, epoch=self.epoch))
        self.gone = []

    @precondition(lambda self: self.gone)
    @rule()
    def append_again_what_was_truncated(self) -> None:
        self.put(self.gone[0])
        if not self.log.full:
            self.gone.pop(0)

    def put(self, one: Batch) -> None:
        if self.log.full:
            with pytest.raises(DiskFull):
                self.log.append(one.header, one.buffers)
            return
        name = (one.header.base_offset, one.header.leader_epoch)
        assert self.ever.setdefault(name, one.data) == one.data, "the test broke its own rule"
        self.ever_last.add((one.end_offset - 1, one.header.leader_epoch))
        self.log.append(one.header, one.buffers)
        self.producers.replay(one.header, checked_control_of(one.header, one.buffers))
        self.twin.batches.append(one)

    @precondition(lambda self: self.twin.batches)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        end = data.draw(st.integers(self.twin.start, self.twin.end), "truncate to")
        self.log.truncate_to(Offset(end))
        self.gone = self.twin.truncate(end) + self.gone
        self.epoch_is_over = True

    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from([self.twin.end, self.twin.end + 7, self.twin.start]), "restart at")
        self.log.truncate_fully_and_start_at(Offset(offset))
        self.twin = Twin(start=offset, restart_at=offset, stable=offset)
        self.highest_start = max(self.highest_start, offset)
        self.gone = []
        self.epoch_is_over = True
        self.restarted = True

    @rule(data=st.data())
    def advance_start(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.twin.start, self.twin.end), "start")
        self.log.advance_log_start(Offset(offset))
        self.twin.start = offset
        self.highest_start = max(self.highest_start, offset)

    # --- Jobs ---

    @rule()
    def take(self) -> None:
        due = self.log.needs_job
        job = self.log.take_job()
        assert (job is not None) == (due and self.job is None)
        if job is not None:
            self.job, self.job_ran, self.job_holds = job, False, self.twin.end

    @precondition(lambda self: self.job is not None and not self.job_ran)
    @rule()
    def run(self) -> None:
        assert self.job is not None
        self.job.run()
        self.job_ran = True

    @precondition(lambda self: self.job is not None and self.job_ran)
    @rule()
    def done(self) -> None:
        assert self.job is not None
        job, self.job = self.job, None
        self.log.job_done(job, None)
        assert self.log.failed is None
        # The assertion itself: the model's limit for a result.
        self.twin.stable = self.log.stable_end_offset

    @precondition(lambda self: self.job is None)
    @rule()
    def whole_round(self) -> None:
        self.take()
        if self.job is not None:
            self.run()
            self.done()

    @precondition(lambda self: self.job is not None and not self.job_ran)
    @rule(data=st.data())
    def meet_a_full_disk(self, data: st.DataObject) -> None:
        assert self.job is not None
        job, self.job = self.job, None
        writes_before = data.draw(st.integers(0, 6), "writes before it is full")
        real = SimFile.pwritev
        counter = [writes_before]

        def pwritev(file: SimFile, buffers: list[bytes], position: int) -> int:
            counter[0] -= 1
            if counter[0] < 0:
                whole = b"".join(buffers)
                real(file, [whole[: len(whole) // 2]], position)
                raise DiskFull("no room")
            return real(file, buffers, position)

        with mock.patch.object(SimFile, "pwritev", pwritev):
            try:
                job.run()
            except DiskFull as error:
                self.log.job_done(job, error)
                assert self.log.full
                return
        self.log.job_done(job, None)
        self.twin.stable = self.log.stable_end_offset

    # --- Producers after a truncation ---

    @precondition(lambda self: self.replay is None and self.log.producers.stale)
    @rule()
    def begin_replay(self) -> None:
        self.replay = self.log.producer_replay()
        assert self.log.producer_replay() is None, "one at a time"

    @precondition(lambda self: self.replay is not None)
    @rule()
    def end_replay(self) -> None:
        assert self.replay is not None
        replay, self.replay = self.replay, None
        try:
            replay.run()
        except LogDamaged as error:
            self.log.damage_found(error)
            assert self.log.failed is None, "batches went meanwhile"
            self.log.producers.replayed(replay, good=False)
        else:
            self.log.producers.replayed(replay)

    # --- Reads ---

    @rule(data=st.data(), max_bytes=st.sampled_from([1, 300, 5000]), cold=st.booleans())
    def read(self, data: st.DataObject, max_bytes: int, cold: bool) -> None:
        start = data.draw(st.integers(self.twin.start, self.twin.end), "read from")
        expected = [one.data for one in self.twin.batches if one.end_offset > start]
        self.cold = cold
        assert read_batches(self.log, start, max_bytes=max_bytes) == expected
        self.cold = False

    # --- The end of a process ---

    @rule()
    def close_clean(self) -> None:
        if self.job is not None and self.job_ran:
            self.done()
        if self.job is not None:
            return
        self.log.close(clean=True)
        self.twin.stable = self.twin.end
        self.restarted = False
        end = self.twin.end
        self.open(clean=True)
        assert self.recovery.clean or self.loss_unreported, self.recovery
        assert self.log.log_end_offset == end
        self.compare_after_crash(power_lost=False)

    @rule(steps=st.integers(0, 12), power=st.booleans(), recovery_steps=st.integers(0, 8), seed=st.integers(0, 1 << 16))
    def crash(self, steps: int, power: bool, recovery_steps: int, seed: int) -> None:
        """In the middle of the current job, and then, perhaps, of the recovery."""
        rng = random.Random(seed)
        if self.job is not None and not self.job_ran and steps:
            self.disk.crash_countdown = steps
            try:
                self.job.run()
            except SimulatedCrash:
                note("crashed in the job")
            self.disk.crash_countdown = 0
        if power:
            self.disk.power_loss(rng)
        if recovery_steps:
            self.disk.crash_countdown = recovery_steps
            try:
                recover_log(self.disk, PATH, self.config, clean_shutdown=False)
            except SimulatedCrash:
                note("crashed in the recovery")
            self.disk.crash_countdown = 0
            if power and rng.random() < 0.5:
                self.disk.power_loss(rng)
        self.open(clean=False)
        note(str(self.recovery))
        self.compare_after_crash(power_lost=power)

    def compare_after_crash(self, *, power_lost: bool) -> None:
        """The log has every stable batch and only batches that were appended there; from now on the model is its
        content."""
        found = read_batches(self.log, self.log.log_start_offset)
        headers = [parse_header(one) for one in found]
        for header, one in zip(headers, found, strict=True):
            assert self.ever[(header.base_offset, header.leader_epoch)] == one
            assert self.log.epochs.epoch_at(Offset(header.base_offset)) == header.leader_epoch
        stable = {one.header.base_offset: one.data for one in self.twin.batches if one.end_offset <= self.twin.stable}
        now = {header.base_offset: one for header, one in zip(headers, found, strict=True)}
        if not self.restarted and not (power_lost and self.flush == "os"):
            # A truncation into the batch that contains the start lowers the start, on disk only later.
            assert self.log.log_start_offset <= self.highest_start
            for base, one in stable.items():
                if base >= self.twin.start:
                    assert now.get(base) == one, f"the stable batch at {base} is lost; {self.recovery}"
            assert self.log.log_end_offset >= self.twin.stable
        if self.flush == "fsync" and not power_lost and not self.loss_unreported:
            assert not self.recovery.cut_or_quarantined, self.recovery
        lost = [base for base in stable if base >= self.twin.start and base not in now]
        assert not lost or self.recovery.cut_or_quarantined or self.restarted, (
            f"{lost} are lost, and it does not say so"
        )
        self.loss_unreported = self.recovery.cut_or_quarantined
        assert self.log.stable_end_offset == self.log.log_end_offset == self.recovery.stable_end_offset
        batches = [Batch(header, [one]) for header, one in zip(headers, found, strict=True)]
        end = self.log.log_end_offset
        self.twin = Twin(self.log.log_start_offset, end, batches, end)
        self.restarted = False

    @precondition(lambda self: self.loss_unreported)
    @rule()
    def report_loss(self) -> None:
        self.log.loss_is_reported()
        if self.job is None:
            self.whole_round()
            if not self.log.needs_job:
                self.loss_unreported = False

    # --- Invariants ---

    @invariant()
    def is_its_twin(self) -> None:
        if not hasattr(self, "log"):
            return
        log = self.log
        log.check_invariants()
        assert (log.log_start_offset, log.log_end_offset) == (self.twin.start, self.twin.end)
        assert log.stable_end_offset == self.twin.stable
        assert self.cache.batch_bytes <= self.cache.capacity_bytes
        live = [one for one in self.twin.batches if one.end_offset > self.twin.start]
        held = [
            (one.header.base_offset, one.header.leader_epoch, one.header.base_offset if one.header.is_control else -1)
            for one in live
        ]
        if not log.producers.stale:
            assert [seen for seen in self.producers.seen if held and seen[0] >= held[0][0]] == held

    def teardown(self) -> None:
        self.patches.close()


class UnflushedLogMachine(LogMachine):
    """`flush=os`: written counts as stable, and only a process crash preserves it."""

    flush = "os"


@pytest.mark.parametrize("machine", [LogMachine, UnflushedLogMachine])
def test_the_log_equals_its_model(machine: type[LogMachine]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=150,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
        ),
    )
