"""The scrubber: its reads and rate, and the handling of each kind of damage in a replica in service."""

from __future__ import annotations

import random

import pytest

from jepsen_like.simulator.world.disk import SimFile
from partitions.files.checkpoint import LogCheckpoint, decode_leader_epochs
from partitions.opening.folders import folder_of
from partitions.upkeep.repair import LossAnswer
from partitions.upkeep.scrub_check import What
from partitions.upkeep.scrubber import FIRST_PASS_SECONDS, Scrubber
from raftlog.errors import DiskFailed
from raftlog.model import Offset
from raftlog.records.batch import HEADER_BYTES
from tests.support.partitions.replication_cluster import ReplicationCluster, tp

PATH = folder_of(tp(0))
RECORDS = 12
INTERVAL = 1_000.0


class Scrubbing(ReplicationCluster):
    """Two brokers in sync; broker 1 has the scrubber."""

    def __init__(self, partitions: int = 1, *, rate: int = 1 << 20, records: int = RECORDS) -> None:
        super().__init__(partitions, repairs=True, cache_bytes=0, **{"segment.bytes": "1024"})
        for number in range(records):
            self.produce(0, number % partitions, size=100)
            self.settle()
        member = self.members[1]
        self.disk, self.manager = member.disk, member.manager
        self.scrubber = Scrubber(
            lambda: self.manager.drivers,
            member.disk,
            self.scheduler,
            member.worker,
            random.Random(1),
            member.logger,
            bytes_per_second=rate,
            interval_seconds=INTERVAL,
        )

    def now(self) -> list[tuple[What, str]]:
        """Run everything to its end."""
        run = self.scrubber.scrub_now(list(self.manager.drivers))
        self.pass_time(10.0)
        assert not run.running
        return [(found.finding.what, found.finding.file) for found in run.findings]

    def pass_time(self, seconds: float) -> None:
        for _ in range(20):
            self.settle()
            self.scheduler.advance(seconds / 20)
        self.settle()

    def name(self, suffix: str) -> str:
        return next(name for name in self.disk.list(PATH) if name.endswith(suffix))

    def flip(self, name: str, position: int) -> None:
        self.disk.flip(f"{PATH}/{name}", position, 1)


def test_nothing_is_found_in_an_intact_replica() -> None:
    cluster = Scrubbing(3)
    assert cluster.now() == []
    run = cluster.scrubber.run
    assert (run.wanted, run.done) == (3, 3)
    assert run.bytes_read >= run.total_bytes > 0


@pytest.mark.parametrize("position", range(0, HEADER_BYTES + 20, 5))
def test_a_damaged_segment_is_repaired_from_the_leader(position: int) -> None:
    """S9: the zero-copy path would have sent it."""
    cluster = Scrubbing()
    cluster.flip(cluster.name(".log"), position)
    assert cluster.now() == [(What.SEGMENT, cluster.name(".log"))]
    ((at, _, _),) = cluster.members[1].losses
    assert at == tp(0)
    assert cluster.manager.drivers[tp(0)].log.is_damaged


def test_damage_in_the_growing_segment_is_found() -> None:
    cluster = Scrubbing(records=2)
    cluster.flip(cluster.name(".log"), HEADER_BYTES + 3)
    assert cluster.now() == [(What.SEGMENT, cluster.name(".log"))]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_damaged_index_is_removed_and_rebuilt(suffix: str) -> None:
    cluster = Scrubbing()
    name = cluster.name(suffix)
    cluster.flip(name, 20)
    assert cluster.now() == [(What.INDEX, name)]
    assert name not in cluster.disk.list(PATH)
    assert cluster.now() == []
    assert cluster.members[1].losses == [], "no record was in question"
    cluster.elect(1)
    fetch = cluster.fetch(1, 0)
    cluster.settle()
    assert fetch.errors == [""] and fetch.records > 0


@pytest.mark.parametrize("name", ["leader-epochs", "checkpoint"])
def test_the_logs_own_files_are_written_again_from_memory(name: str) -> None:
    cluster = Scrubbing()
    cluster.flip(name, 15)
    what = What.LEADER_EPOCHS if name == "leader-epochs" else What.CHECKPOINT
    assert cluster.now() == [(what, name)]
    cluster.settle()
    log = cluster.manager.drivers[tp(0)].log
    if what is What.CHECKPOINT:
        assert LogCheckpoint.decode(cluster.disk.read(f"{PATH}/{name}")).log_start_offset == log.log_start_offset
    else:
        assert decode_leader_epochs(cluster.disk.read(f"{PATH}/{name}")) == log.epochs
    assert cluster.now() == []


def test_a_damaged_producer_snapshot_is_removed() -> None:
    cluster = Scrubbing()
    name = cluster.name(".producers")
    cluster.flip(name, 25)
    assert cluster.now() == [(What.PRODUCERS, name)]
    assert name not in cluster.disk.list(PATH)
    assert cluster.now() == []


def test_a_file_that_changed_since_the_plan_is_no_finding() -> None:
    cluster = Scrubbing()
    cluster.scrubber.scrub_now([tp(0)])
    driver = cluster.manager.drivers[tp(0)]
    cluster.disk.flip(f"{PATH}/{cluster.name('.log')}", 3, 1)
    driver.log.truncate_fully_and_start_at(driver.log.log_end_offset)
    cluster.pass_time(5.0)
    assert cluster.scrubber.run.findings == [] and not cluster.scrubber.run.running
    assert cluster.members[1].losses == []


def test_a_finding_counts_although_retention_removed_another_segment_meanwhile() -> None:
    """Otherwise a log that loses a segment now and then, as most do, would never be found damaged."""
    cluster = Scrubbing()
    name = [name for name in cluster.disk.list(PATH) if name.endswith(".log")][1]
    cluster.flip(name, HEADER_BYTES + 3)
    run = cluster.scrubber.scrub_now([tp(0)])
    driver = cluster.manager.drivers[tp(0)]
    driver.log.advance_log_start(Offset(int(name[:20])))
    driver.configure(driver.log.config)
    cluster.pass_time(5.0)
    assert cluster.name(".log") == name, "the first segment is gone"
    assert [found.finding.file for found in run.findings] == [name]
    assert driver.log.is_damaged and len(cluster.members[1].losses) == 1


def test_a_segment_removed_during_its_check_is_no_finding() -> None:
    cluster = Scrubbing()
    first, second = [name for name in cluster.disk.list(PATH) if name.endswith(".log")][:2]
    cluster.flip(first, HEADER_BYTES + 3)
    run = cluster.scrubber.scrub_now([tp(0)])
    driver = cluster.manager.drivers[tp(0)]
    driver.log.advance_log_start(Offset(int(second[:20])))
    driver.configure(driver.log.config)
    cluster.pass_time(5.0)
    assert (run.findings, run.running, cluster.members[1].losses) == ([], False, [])


@pytest.mark.parametrize("name", [".log", "leader-epochs", "checkpoint"])
def test_a_missing_file_is_found(name: str) -> None:
    cluster = Scrubbing()
    what = {".log": What.SEGMENT, "leader-epochs": What.LEADER_EPOCHS, "checkpoint": What.CHECKPOINT}[name]
    name = cluster.name(name)
    cluster.disk.remove(f"{PATH}/{name}")
    assert cluster.now() == [(what, name)]
    if what is What.SEGMENT:
        assert len(cluster.members[1].losses) == 1
    else:
        assert cluster.now() == [], "it was written again"


def test_unreadable_bytes_are_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sector that the disk has lost: the replica stays in service, and gets it from a peer."""
    cluster = Scrubbing()

    def broken(self: SimFile, length: int, position: int) -> bytes:
        raise DiskFailed("read: Input/output error")

    monkeypatch.setattr(SimFile, "pread", broken)
    found = cluster.now()
    assert {what for what, _ in found} == {What.SEGMENT}
    assert "Input/output error" in str(cluster.scrubber.run.findings[0])
    assert len(cluster.members[1].losses) == 1
    assert not cluster.manager.drivers[tp(0)].replica.offline


def test_a_disk_that_opens_no_file_takes_the_replica_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Scrubbing()

    def broken(path: str, *, create: bool = False, exclusive: bool = False, bulk: bool = False) -> SimFile:
        raise DiskFailed("open: Input/output error")

    monkeypatch.setattr(cluster.disk, "open", broken)
    run = cluster.scrubber.scrub_now([tp(0)])
    cluster.pass_time(1.0)
    assert "Input/output error" in cluster.manager.drivers[tp(0)].replica.offline
    assert not run.running


def test_passes_start_by_themselves_with_a_bounded_rate_and_then_nothing_runs() -> None:
    cluster = Scrubbing(2)
    cluster.scrubber.start()
    cluster.pass_time(FIRST_PASS_SECONDS[0] - 1)
    assert cluster.scrubber.passes == 0
    cluster.pass_time(FIRST_PASS_SECONDS[1])
    assert cluster.scrubber.passes == 1
    assert not cluster.members[1].worker.pending
    cluster.pass_time(INTERVAL + 1)
    assert cluster.scrubber.passes == 2


def test_the_rate_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partitions.upkeep.scrubber.STEP_BYTES", 4096)
    cluster = Scrubbing(rate=1024, records=40)
    cluster.scrubber.start()
    cluster.scheduler.advance(FIRST_PASS_SECONDS[1])
    read = []
    for _ in range(8):
        cluster.settle()
        read.append(cluster.scrubber.passes)
        cluster.scheduler.advance(1.0)
    assert read[0] == read[3] == 0, "forty small batches count 2 KiB each: more than a minute"
    for _ in range(12):
        cluster.pass_time(20.0)
    assert cluster.scrubber.passes == 1


def test_a_requested_check_does_not_wait_for_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for the replica that it reads nor for its pause; the pass continues afterwards where it was."""
    monkeypatch.setattr("partitions.upkeep.scrubber.STEP_BYTES", 4096)
    cluster = Scrubbing(2, rate=64, records=40)
    cluster.scrubber.start()
    cluster.scheduler.advance(FIRST_PASS_SECONDS[1])
    cluster.settle()
    run = cluster.scrubber.scrub_now([tp(0), tp(1)])
    sizes = [driver.log.size_bytes for name, driver in cluster.manager.drivers.items() if name in (tp(0), tp(1))]
    assert run.total_bytes == sum(sizes) and len(sizes) == run.wanted == 2
    for _ in range(10):
        cluster.pass_time(1.0)
    assert (run.done, run.running, run.findings) == (2, False, [])
    assert cluster.scrubber.passes == 0, "one pause of the pass takes a minute"
    for _ in range(40):
        if not cluster.scrubber.passes:
            cluster.pass_time(100.0)
    assert cluster.scrubber.passes == 1


def test_a_stopping_broker_reads_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its workers accept no more work."""
    monkeypatch.setattr("partitions.upkeep.scrubber.STEP_BYTES", 4096)
    cluster = Scrubbing(records=40)
    run = cluster.scrubber.scrub_now([tp(0)])
    cluster.settle()
    assert run.running
    cluster.manager.close(lambda clean: None)
    cluster.settle()
    cluster.pass_time(10.0)
    assert not run.running and run.bytes_read < run.total_bytes
    assert not cluster.members[1].worker.pending


def test_switched_off_it_reads_only_on_request() -> None:
    cluster = Scrubbing(rate=0)
    cluster.scrubber.start()
    cluster.pass_time(10 * INTERVAL)
    assert cluster.scrubber.passes == 0
    assert cluster.now() == [] and cluster.scrubber.run.bytes_read > 0


def test_missing_replicas_are_not_waited_for() -> None:
    cluster = Scrubbing()
    run = cluster.scrubber.scrub_now([tp(7)])
    assert not run.running and run.wanted == 0


def test_a_repaired_replica_is_found_intact() -> None:
    cluster = Scrubbing()
    cluster.flip(cluster.name(".log"), HEADER_BYTES + 3)
    cluster.now()
    ((_, _, done),) = cluster.members[1].losses
    cluster.members[1].losses.clear()
    cluster.elect(0, isr=[0])
    done(LossAnswer.ACCEPTED)
    cluster.settle()
    assert cluster.log_end(1) == (RECORDS, RECORDS)
    assert cluster.now() == []
