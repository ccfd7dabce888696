"""What compaction dropped for the sake of later records, where those are lost to everybody (S4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from jepsen_like.simulator.disk import SimDisk, SimulatedCrash
from partitions import effects as fx
from partitions.checkpoint import (
    CLEANER_CHECKPOINT_NAME,
    NEEDED_END_NAME,
    NEVER_REACHED,
    NOTHING_NEEDED,
    DamagedFile,
    NeededEnd,
)
from partitions.compaction_run import CleanedSegment, Finished
from partitions.log import PartitionLog
from raftlog.config import TopicConfig
from raftlog.errors import DiskFull
from raftlog.model import NO_EPOCH, LeaderEpoch, Offset
from tests.support.compacted_cluster import CompactedCluster
from tests.support.compaction import COMPACTED, append_records, records, reopen, seal, table
from tests.support.replication_cluster import tp
from tests.support.replication_cores import CoreDriver, FakeLog, broker
from tests.support.storage import PATH, open_log, settle

UNFLUSHED = replace(COMPACTED, flush="os")
COPYING = NeededEnd(NEVER_REACHED, LeaderEpoch(2))


def new_log(config: TopicConfig = COMPACTED) -> tuple[SimDisk, PartitionLog]:
    disk = SimDisk()
    disk.make_directory("partitions")
    disk.fsync_directory("")
    return disk, open_log(disk, config)


def filled(config: TopicConfig = COMPACTED) -> tuple[SimDisk, PartitionLog]:
    disk, log = new_log(config)
    for number in range(40):
        append_records(log, [(b"k%d" % (number % 2), b"v%d" % number * 8)])
    seal(log)
    return disk, log


def make_a_pass(log: PartitionLog) -> None:
    plan = log.compaction_plan(log.stable_end_offset, 10_000)
    assert plan is not None
    run = log.compaction_run(plan, 10_000)
    settle(log)
    assert log.needed_end_is_known
    while not isinstance(piece := run.next_piece(), Finished):
        if isinstance(piece, CleanedSegment):
            assert log.replace_segment(piece)
    log.compacted(run, piece.end)
    settle(log)


def at_every_crash(
    begin: Callable[[], tuple[SimDisk, PartitionLog]], then: Callable[[PartitionLog], None]
) -> list[PartitionLog]:
    """What is found after a loss of power at each of the calls that `then` makes of the disk."""
    found: list[PartitionLog] = []
    while True:
        disk, log = begin()
        disk.crash_countdown = len(found) + 1
        try:
            then(log)
            assert len(found) > 3
            return found
        except SimulatedCrash:
            disk.crash_countdown = 0
        found.append(PartitionLog.open(disk, PATH, log.config, clean_shutdown=False)[0])


class TestTheLog:
    def test_no_record_is_dropped_before_the_disk_knows_for_the_sake_of_what(self) -> None:
        logs = at_every_crash(filled, make_a_pass)
        dropped = [len(records(log)) < 40 for log in logs]
        assert any(dropped) and not all(dropped)
        for log, some in zip(logs, dropped, strict=True):
            assert log.needed_end.offset in ({40} if some else {0, 40})

    def test_what_is_copied_is_known_as_that_before_any_of_it_is_there(self) -> None:
        def copy(log: PartitionLog) -> None:
            log.need_end(COPYING.offset, COPYING.leader_epoch)
            append_records(log, [(b"k", b"v")])
            settle(log)

        for log in at_every_crash(lambda: new_log(UNFLUSHED), copy):
            assert log.log_end_offset == 0 or log.needed_end == COPYING

    def test_what_is_cut_off_needs_something_until_all_of_it_is_gone(self) -> None:
        def begin() -> tuple[SimDisk, PartitionLog]:
            disk, log = filled(UNFLUSHED)
            log.need_end(COPYING.offset, COPYING.leader_epoch)
            settle(log)
            return disk, log

        def begin_anew(log: PartitionLog) -> None:
            log.truncate_fully_and_start_at(Offset(0))
            assert log.needed_end == NOTHING_NEEDED
            log.need_end(NEVER_REACHED, LeaderEpoch(3))
            settle(log)

        for log in at_every_crash(begin, begin_anew):
            assert log.log_end_offset == 0 or log.needed_end == COPYING

    def test_it_survives_a_restart_and_is_no_stranger_in_the_folder(self) -> None:
        disk, log = filled()
        make_a_pass(log)
        log.close(clean=True)
        again, recovery = PartitionLog.open(disk, PATH, COMPACTED, clean_shutdown=True)
        assert again.needed_end == NeededEnd(Offset(40), NO_EPOCH) and recovery.clean and not recovery.notes

    def test_of_a_pass_from_before_there_was_this_file(self) -> None:
        disk, log = filled()
        make_a_pass(log)
        log.close(clean=True)
        disk.remove(f"{PATH}/{NEEDED_END_NAME}")
        again = reopen(disk)
        assert again.needed_end.offset == 40 and not again.needed_end_is_known
        settle(again)
        disk.remove(f"{PATH}/{CLEANER_CHECKPOINT_NAME}")
        assert reopen(disk).needed_end.offset == 40

    def test_damaged_it_may_have_said_anything(self) -> None:
        disk, log = filled()
        make_a_pass(log)
        log.close(clean=True)
        disk.replace(f"{PATH}/{NEEDED_END_NAME}", b"rlog")
        assert reopen(disk).needed_end == NeededEnd(NEVER_REACHED, NO_EPOCH)

    @pytest.mark.parametrize("change", [lambda good: good[:-1], lambda good: b"x" + good[1:]])
    def test_its_file(self, change: Callable[[bytes], bytes]) -> None:
        assert NeededEnd.decode(COPYING.encode()) == COPYING
        with pytest.raises(DamagedFile):
            NeededEnd.decode(change(COPYING.encode()))
        with pytest.raises(DamagedFile):
            NeededEnd.decode(NeededEnd(Offset(-1), NO_EPOCH).encode())

    def test_a_full_disk_leaves_it_to_be_said_again(self) -> None:
        disk, log = filled()
        log.need_end(Offset(40), NO_EPOCH)
        job = log.take_job()
        assert job is not None
        log.job_done(job, DiskFull("no room"))
        settle(log)
        assert reopen(disk).needed_end.offset == 40


class TestTheFollower:
    def following(self, log: FakeLog, **fields: object) -> CoreDriver:
        """Broker 1 follows broker 0 in epoch 2; nobody counts on it."""
        core = CoreDriver(log, node=1)
        core.lead(**{"epoch": 2, "isr": (0,), "commit_set": (0,), "minimum": 1, **fields})
        assert core.replica.follower is not None
        core.do(core.replica.follower.on_link_opened(0.0))
        return core

    def answer(self, core: CoreDriver, what: fx.Answer) -> list[fx.Effect]:
        assert core.replica.follower is not None
        return core.do(core.replica.follower.on_answer(LeaderEpoch(2), what, core.now))

    def compacted(self, needed: int, epoch: int = -1, *, may_lose: bool = True) -> FakeLog:
        log = FakeLog.of((1, 10), start=2)
        log.needed_end, log.may_lose_needed = NeededEnd(Offset(needed), LeaderEpoch(epoch)), may_lose
        return log

    @pytest.mark.parametrize("may_lose", [True, False])
    def test_what_would_be_cut_below_what_it_needs_is_copied_anew(self, may_lose: bool) -> None:
        core = self.following(self.compacted(8, may_lose=may_lose))
        begin, ask = self.answer(core, fx.Diverged(LeaderEpoch(1), Offset(7)))
        assert begin == fx.StartLogAt(LeaderEpoch(2), Offset(0))
        assert isinstance(ask, fx.Subscribe) and (ask.last_epoch, ask.fetch_offset) == (-1, 0)
        assert core.replica.high_watermark == 0 and core.log.needed_end == NOTHING_NEEDED

    def test_what_is_cut_above_it_is_cut(self) -> None:
        core = self.following(self.compacted(8))
        assert self.answer(core, fx.Diverged(LeaderEpoch(1), Offset(8)))[0] == fx.TruncateTo(LeaderEpoch(2), Offset(8))

    def test_what_is_counted_on_is_not_given_up(self) -> None:
        core = self.following(self.compacted(8), isr=(0, 1), commit_set=(0, 1))
        assert self.answer(core, fx.Diverged(LeaderEpoch(1), Offset(7)))[0] == fx.TruncateTo(LeaderEpoch(2), Offset(7))

    def test_a_copy_goes_on_with_the_leader_that_it_is_of(self) -> None:
        core = self.following(self.compacted(NEVER_REACHED, 2))
        assert [type(effect) for effect in core.out] == [fx.Subscribe]

    @pytest.mark.parametrize("needed", [NEVER_REACHED, 11])
    def test_with_another_one_it_begins_anew(self, needed: int) -> None:
        core = self.following(self.compacted(needed, 1))
        assert [type(effect) for effect in core.out] == [fx.StartLogAt, fx.Subscribe]

    def test_unless_nothing_that_is_committed_is_ever_lost(self) -> None:
        core = self.following(self.compacted(NEVER_REACHED, 1, may_lose=False))
        assert [type(effect) for effect in core.out] == [fx.Subscribe]

    def test_it_is_a_copy_from_the_match_until_it_is_in_sync(self) -> None:
        core = self.following(self.compacted(4))
        noted = self.answer(core, fx.Matched(Offset(10), Offset(2)))[0]
        assert noted == fx.NeedEnd(LeaderEpoch(2), NEVER_REACHED)
        (noted,) = core.lead(epoch=2, isr=(0, 1), partition_epoch=2)
        assert noted == fx.NeedEnd(LeaderEpoch(2), Offset(10))
        assert core.lead(epoch=2, isr=(0, 1, 2), partition_epoch=3) == []
        (noted,) = core.lead(epoch=2, isr=(0, 2), partition_epoch=4)
        assert noted == fx.NeedEnd(LeaderEpoch(2), NEVER_REACHED)

    def test_where_nothing_is_lost_nothing_is_noted(self) -> None:
        core = self.following(self.compacted(4, may_lose=False))
        assert self.answer(core, fx.Matched(Offset(10), Offset(2))) == [
            fx.AdvanceHighWatermark(Offset(10), exposed=False)
        ]


class TestReplicas:
    @pytest.mark.parametrize("flush", ["os", "fsync"])
    def test_what_one_dropped_for_what_no_leader_has_it_gets_back(self, flush: str) -> None:
        """Found by a simulated cluster, which lost power as a whole."""
        cluster = CompactedCluster(flush=flush)
        cluster.fill(40)
        cluster.send_away(2)
        cluster.fill(20, keys=3)
        assert cluster.compact(1)
        assert len(records(cluster.log(1))) < 20 and len(records(cluster.log(2))) == 40
        cluster.away = {0}
        cluster.tell(broker(2))
        cluster.elect(2, isr=(2,))
        cluster.pass_time(20)
        assert table(cluster.log(1)) == table(cluster.log(2))
        assert cluster.log_end(1) == cluster.log_end(2) == (40, 40)

    def test_a_copy_of_a_log_that_may_be_lost_says_so_until_it_is_in_sync(self) -> None:
        cluster = CompactedCluster(flush="os")
        cluster.send_away(2)
        cluster.fill(40)
        assert cluster.compact(0)
        cluster.bring_back(2)
        assert cluster.log(2).needed_end == NeededEnd(NEVER_REACHED, LeaderEpoch(1))
        cluster.set_isr(0, 1, 2)
        cluster.settle()
        assert cluster.log(2).needed_end.offset == 40
        log = PartitionLog.open(
            cluster.members[2].disk, f"partitions/{tp(0).directory_name}", cluster.log(2).config, clean_shutdown=False
        )[0]
        assert log.needed_end.offset == 40
