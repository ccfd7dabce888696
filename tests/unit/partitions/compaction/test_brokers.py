"""Compaction at brokers: each replica on its own, one pass at a time, and an error ends only its pass."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from jepsen_like.simulator.world.disk import SimDisk, SimulatedCrash
from partitions.compaction.run import CleanedSegment, Finished
from partitions.upkeep import compactor as compactor_module
from raftlog.errors import DiskFailed, DiskFull, RaftlogError
from raftlog.model import Offset
from raftlog.records.batch import RecordBatch, parse_header
from raftlog.records.header import seal as seal_batch
from tests.support.clusters.compacted import CompactedCluster
from tests.support.partitions.compaction import COMPACTED, append_records, compact, records, seal, table
from tests.support.partitions.replication_cluster import tp
from tests.support.partitions.storage import PATH, open_log, read_batches, recover_log, settle


def filled(brokers: int = 3) -> CompactedCluster:
    cluster = CompactedCluster(brokers=brokers)
    cluster.fill(60)
    return cluster


class TestAPass:
    def test_a_record_without_key_is_refused(self) -> None:
        """S11."""
        cluster = CompactedCluster()
        refused = cluster.put(None, b"v")
        assert isinstance(refused, RaftlogError)
        assert refused.code == "invalid_record" and "key" in refused.detail
        assert cluster.log_end(0) == (0, 0)
        assert not isinstance(cluster.put(b"", b"v"), RaftlogError), "an empty key is a key"

    def test_each_replica_compacts_on_its_own_and_a_new_leader_continues(self) -> None:
        cluster = filled()
        before = table(cluster.log(0))
        assert cluster.compact(1)
        assert len(records(cluster.log(1))) < len(records(cluster.log(0))) == 60
        assert table(cluster.log(1)) == before
        cluster.elect(1)
        cluster.settle()
        fetched = cluster.fetch(1, 0)
        assert fetched.records and not fetched.errors[0]
        for member in (0, 2):
            assert cluster.log(member).log_end_offset == 60
            assert not cluster.members[member].offline

    def test_one_pass_at_a_time(self) -> None:
        cluster = filled()
        cluster.pass_time()
        assert cluster.members[0].manager.compactor.look()
        assert not cluster.members[0].manager.compactor.look()

    def test_a_follower_that_starts_empty_copies_a_compacted_log(self) -> None:
        cluster = CompactedCluster()
        cluster.send_away(2)
        cluster.fill(60)
        assert cluster.compact(0)
        expected = records(cluster.log(0))
        assert len(expected) < 20 and cluster.log(2).log_end_offset == 0
        cluster.bring_back(2)
        assert records(cluster.log(2)) == expected
        assert cluster.log(2).log_end_offset == 60

    def test_it_waits_until_the_clusters_time_is_known(self) -> None:
        cluster = filled(brokers=2)
        member = cluster.members[0]
        member.time.tells = False
        assert not member.manager.compactor.look()
        assert any("compaction waits" in line for line, _ in member.logger.lines)
        member.time.tells = True
        assert member.manager.compactor.look()

    def test_it_ends_with_its_replica(self) -> None:
        cluster = filled(brokers=2)
        assert cluster.members[0].manager.compactor.look()
        closed: list[bool] = []
        cluster.members[0].manager.close(closed.append)
        cluster.settle()
        cluster.scheduler.advance(1.0)
        cluster.settle()
        assert closed == [True]

    def test_an_old_active_segment_is_sealed(self) -> None:
        cluster = CompactedCluster(**{"max.compaction.lag.ms": "1000", "segment.bytes": "100000"})  # type: ignore[arg-type]
        cluster.fill(5, keys=1)
        assert not cluster.members[0].manager.compactor.look()
        cluster.scheduler.advance(2.0)
        cluster.members[0].manager.compactor.look()
        cluster.settle()
        assert cluster.members[0].manager.compactor.look() or cluster.members[0].manager.compactor.passes
        cluster.pass_time()
        assert [offset for offset, _, _ in records(cluster.log(0))] == [4]


class TestWhatGoesWrong:
    def test_an_exchange_that_fails_takes_the_replica_offline_and_holds_up_no_other(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Otherwise the pass would stay open forever: no other would begin, and the folder would never be released."""
        for error in (DiskFailed("rename"), DiskFull("rename"), FileNotFoundError("rename")):
            cluster = filled(brokers=2)
            member = cluster.members[0]
            cluster.pass_time()
            assert member.manager.compactor.look()

            def refuse(source: str, target: str, error: Exception = error) -> None:
                raise error

            with monkeypatch.context() as patch:
                patch.setattr(member.disk, "rename", refuse)
                for _ in range(20):
                    cluster.settle()
                    cluster.scheduler.advance(0.05)
            assert [where for where, _ in member.offline] == [tp(0)], error
            closed: list[bool] = []
            member.manager.close(closed.append)
            cluster.pass_time()
            assert closed, error

    def test_a_log_without_progress_is_skipped_for_a_while(self) -> None:
        """Otherwise the dirtiest log would always come first, and the others never."""
        cluster = filled(brokers=2)
        member = cluster.members[0]
        cluster.pass_time()
        compactor = member.manager.compactor
        assert compactor.look()
        member.disk.full_folders = (f"partitions/{tp(0).directory_name}",)
        for _ in range(20):
            cluster.settle()
            cluster.scheduler.advance(0.05)
        member.disk.full_folders = ()
        assert any(line == "compaction ended early" for line, _ in member.logger.lines)
        assert [compactor.look() for _ in range(compactor_module.RESTS)] == [False] * compactor_module.RESTS
        assert compactor.look() and not member.offline


def test_an_unreadable_batch_stays_and_so_does_every_tombstone() -> None:
    """It must not take the replica out of service, which would happen at every broker: each has the same bytes."""
    disk = SimDisk()
    disk.make_directory("partitions")
    log = open_log(disk, replace(COMPACTED, delete_retention_ms=0))
    append_records(log, [(b"k", b"1")])
    good = parse_header(read_batches(log, 0)[0])
    unreadable = seal_batch(msgspec.structs.replace(good, base_offset=1), [b"no array of columns"])
    log.append(parse_header(unreadable), [unreadable])
    append_records(log, [(b"k", None), (b"other", b"1")])
    seal(log)
    for now_ms in (10_000, 20_000):
        plan = log.compaction_plan(log.stable_end_offset, now_ms)
        assert plan is not None
        run = log.compaction_run(plan, now_ms)
        while not isinstance(piece := run.next_piece(), Finished):
            if isinstance(piece, CleanedSegment):
                assert log.replace_segment(piece)
        assert "cannot be read" in piece.left_whole and piece.end == plan.first_dirty
        settle(log)
    found = read_batches(log, 0)
    assert found[1] == unreadable and log.failed is None
    assert RecordBatch(found[2]).values() == [None, b"1"]


def test_a_truncation_interrupted_by_a_crash_never_leaves_compaction_ahead_of_the_log() -> None:
    """The batches that replace the truncated ones are not compacted: no tombstone may be removed before the records
    that it deletes."""
    step = 0
    while True:
        step += 1
        disk = SimDisk()
        disk.make_directory("partitions")
        disk.fsync_directory("")
        log = open_log(disk, COMPACTED)
        for number in range(40):
            append_records(log, [(b"once%d" % number, b"v" * 60)])
        seal(log)
        compact(log)
        assert log.first_dirty_offset == 40
        log.truncate_to(Offset(10))
        disk.crash_countdown = step
        try:
            settle(log)
            break
        except SimulatedCrash:
            disk.crash_countdown = 0
        again = recover_log(disk, PATH, COMPACTED, clean_shutdown=False)[0]
        assert again.first_dirty_offset <= again.log_end_offset, step
    assert step > 5
