"""Damage in a running replica: the quorum is asked first, then the log is truncated and fetches the lost part again."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from jepsen_like.simulator.world.disk import SimFile
from partitions.files import quarantine
from partitions.opening.folders import folder_of
from partitions.replication import pushes as replication_pushes
from partitions.upkeep.repair import ASK_AGAIN_SECONDS, LAST_COPY_SECONDS, LossAnswer
from raftlog.errors import DiskFailed
from raftlog.model import NO_BROKER, NO_INCARNATION, BrokerId, LeaderEpoch, PartitionEpoch
from raftlog.records.batch import HEADER_BYTES
from tests.support.partitions.replication_cluster import ReplicationCluster, tp

SEGMENT = f"{folder_of(tp(0))}/{0:020d}.log"
RECORDS = 12


class Repairing(ReplicationCluster):
    """Two brokers in sync on twelve records; a broker's loss reports wait in `member.losses`."""

    def __init__(self, brokers: int = 2) -> None:
        super().__init__(brokers=brokers, repairs=True, cache_bytes=0, **{"segment.bytes": "1024"})
        for _ in range(RECORDS):
            self.produce(0, size=100)
            self.settle()

    def flip(self, number: int, position: int, segment: int = 0) -> None:
        self.members[number].disk.flip(self.segments(number)[segment], position, 1)

    def segments(self, number: int) -> list[str]:
        folder = folder_of(tp(0))
        return [f"{folder}/{name}" for name in self.members[number].disk.list(folder) if name.endswith(".log")]

    def read_cold(self, number: int, offset: int = 0) -> list[str]:
        """A consumer's read that goes to the disk, where the CRC is checked."""
        self.members[number].disk.cold = True
        fetch = self.fetch(number, offset)
        self.settle()
        self.members[number].disk.cold = False
        return fetch.errors

    def find(self, number: int, segment: int = 0) -> None:
        """Find the damage as the scrubber does."""
        driver = self.members[number].manager.drivers[tp(0)]
        driver.on_load_failed(driver.log.damage_in(driver.log.segments.all[segment].base_offset, "bits rotted"))
        self.settle()

    def accept(self, number: int) -> None:
        """The quorum accepts the report: the record without the replica reaches all brokers, then the answer
        arrives."""
        ((at, epoch, done),) = self.members[number].losses
        self.members[number].losses.clear()
        old = self.records[0]
        assert (at, epoch) == (tp(0), old.leader_epoch)
        isr = tuple(member for member in old.isr if member != number)
        record = replace(
            old,
            leader=NO_BROKER if old.leader == number else old.leader,
            leader_incarnation=NO_INCARNATION if old.leader == number else old.leader_incarnation,
            leader_epoch=LeaderEpoch(old.leader_epoch + 1),
            partition_epoch=PartitionEpoch(old.partition_epoch + 1),
            isr=isr,
            min_insync_replicas=1,
            commit_set=isr,
        )
        self.tell(record)
        done(LossAnswer.ACCEPTED)
        self.settle()

    def content(self, number: int) -> list[bytes]:
        log = self.members[number].manager.drivers[tp(0)].log
        disk = self.members[number].disk
        names = [name for name in disk.list(folder_of(tp(0))) if name.endswith(".log")]
        assert log.stable_end_offset == log.log_end_offset
        return [disk.read(f"{folder_of(tp(0))}/{name}") for name in names]


def quarantined(cluster: Repairing, number: int) -> list[str]:
    return [name for name in cluster.members[number].disk.list(folder_of(tp(0))) if name.endswith(".quarantined")]


def test_a_follower_is_repaired() -> None:
    """S6, S9: it is truncated only after the quorum removed it from the ISR."""
    cluster = Repairing()
    cluster.flip(1, HEADER_BYTES + 5)
    cluster.find(1)
    assert quarantined(cluster, 1) == [], "nothing is cut before the quorum has agreed"
    assert cluster.log_end(1) == (RECORDS, RECORDS)
    cluster.accept(1)
    assert quarantined(cluster, 1), "what was damaged is set aside"
    assert cluster.log_end(1) == (RECORDS, RECORDS), "and was fetched again"
    assert b"".join(cluster.content(1)) == b"".join(cluster.content(0))
    (proposal, _) = cluster.members[0].proposals[-1]
    assert {broker for broker, _ in proposal.isr} == {0, 1}, "its leader asks for it again"
    assert proposal.leader_epoch == cluster.records[0].leader_epoch
    assert cluster.members[1].manager.repairs.status() == []


def test_a_leader_gives_up_leadership_and_repairs_as_a_follower() -> None:
    cluster = Repairing()
    before = b"".join(cluster.content(1))
    cluster.flip(0, HEADER_BYTES + 5)
    assert cluster.read_cold(0) == ["replica_not_available"]
    cluster.accept(0)
    assert cluster.members[0].manager.drivers[tp(0)].replica.leader is None
    cluster.elect(1, isr=[1])
    cluster.settle()
    assert cluster.log_end(0) == (RECORDS, RECORDS)
    assert b"".join(cluster.content(0)) == b"".join(cluster.content(1)) == before


@pytest.mark.parametrize("position", [3, 10, 14, 16, 18, HEADER_BYTES + 5])
def test_damage_anywhere_is_found_by_a_cold_read(position: int) -> None:
    cluster = Repairing()
    cluster.flip(0, position)
    (error,) = cluster.read_cold(0)
    assert error in {"replica_not_available", "disk_failed"}
    assert len(cluster.members[0].losses) == 1
    (line,) = cluster.members[0].manager.repairs.status()
    assert "about to be repaired" in line


def test_while_the_quorum_is_asked_the_replica_gets_no_newer_record() -> None:
    """In a newer epoch its leader would count the part that it is about to lose (S6)."""
    cluster = Repairing()
    cluster.flip(1, HEADER_BYTES + 5)
    cluster.find(1)
    epoch = cluster.members[1].manager.drivers[tp(0)].leader_epoch
    cluster.elect(0)
    cluster.settle()
    assert cluster.members[1].manager.drivers[tp(0)].leader_epoch == epoch
    (_, _, done) = cluster.members[1].losses.pop()
    done(LossAnswer.AGAIN)
    cluster.settle()
    assert cluster.members[1].manager.drivers[tp(0)].leader_epoch == epoch + 1
    cluster.scheduler.advance(ASK_AGAIN_SECONDS)
    ((_, asked, _),) = cluster.members[1].losses
    assert asked == epoch + 1
    cluster.accept(1)
    assert cluster.log_end(1) == (RECORDS, RECORDS)


def test_the_last_copy_stays_readable_around_the_damage() -> None:
    """No other replica has the data: good batches are served, appends continue, nothing is truncated."""
    cluster = Repairing()
    length = len(cluster.content(0)[0]) // 5
    cluster.flip(0, 2 * length + HEADER_BYTES + 5)
    assert cluster.read_cold(0, 2) == ["replica_not_available"]
    ((_, _, done),) = cluster.members[0].losses
    cluster.members[0].losses.clear()
    done(LossAnswer.LAST_COPY)
    cluster.settle()
    (line,) = cluster.members[0].manager.repairs.status()
    assert "no other replica has the data" in line
    around = cluster.fetch(0, 0)
    cluster.settle()
    assert (around.errors, around.records) == ([""], 2), "up to the damage"
    assert cluster.read_cold(0, 2) == ["replica_not_available"]
    behind = cluster.fetch(0, 3)
    cluster.settle()
    assert behind.errors == [""] and behind.records > 0
    answers = cluster.produce(0)
    cluster.settle()
    assert answers[0].base_offset == RECORDS
    assert quarantined(cluster, 0) == []
    cluster.scheduler.advance(LAST_COPY_SECONDS)
    assert len(cluster.members[0].losses) == 1, "asked again: somebody may be back"


def test_the_only_member_of_the_isr_is_repaired_once_another_replica_has_the_data() -> None:
    """Until then it leads and serves the good part: its follower catches up from it as far as possible."""
    cluster = Repairing()
    cluster.set_isr(0)
    cluster.flip(0, HEADER_BYTES + 5)
    assert cluster.read_cold(0) == ["replica_not_available"]
    ((_, _, done),) = cluster.members[0].losses
    cluster.members[0].losses.clear()
    done(LossAnswer.LAST_COPY)
    cluster.settle()
    assert cluster.members[0].manager.drivers[tp(0)].replica.leader is not None
    assert quarantined(cluster, 0) == []
    cluster.set_isr(0, 1)
    cluster.scheduler.advance(LAST_COPY_SECONDS)
    cluster.accept(0)
    cluster.elect(1, isr=[1])
    cluster.settle()
    assert b"".join(cluster.content(0)) == b"".join(cluster.content(1))
    assert cluster.members[0].manager.repairs.status() == []


def test_damage_removed_by_retention_needs_no_repair() -> None:
    cluster = Repairing()
    cluster.flip(0, HEADER_BYTES + 5)
    cluster.read_cold(0)
    ((_, _, done),) = cluster.members[0].losses
    cluster.members[0].losses.clear()
    done(LossAnswer.LAST_COPY)
    driver = cluster.members[0].manager.drivers[tp(0)]
    driver.move_log_start(driver.log.log_end_offset)
    cluster.settle()
    cluster.scheduler.advance(LAST_COPY_SECONDS)
    cluster.settle()
    assert cluster.members[0].losses == []
    assert cluster.members[0].manager.repairs.status() == []


def test_a_replica_that_is_removed_meanwhile_is_not_repaired() -> None:
    cluster = Repairing()
    cluster.flip(1, HEADER_BYTES + 5)
    cluster.find(1)
    ((_, _, done),) = cluster.members[1].losses
    old = cluster.records[0]
    gone = replace(old, replicas=(BrokerId(0),), isr=(BrokerId(0),), commit_set=(BrokerId(0),),
                   partition_epoch=PartitionEpoch(old.partition_epoch + 1), min_insync_replicas=1)  # fmt: skip
    cluster.tell(gone)
    cluster.settle()
    assert tp(0) not in cluster.members[1].manager.drivers
    done(LossAnswer.ACCEPTED)
    cluster.settle()
    assert tp(0) not in cluster.members[1].manager.drivers
    assert cluster.members[1].manager.repairs.status() == []


def test_without_a_quorum_to_ask_damage_takes_the_replica_offline() -> None:
    cluster = ReplicationCluster(cache_bytes=0)
    cluster.produce(0, size=100)
    cluster.settle()
    cluster.members[0].disk.flip(SEGMENT, HEADER_BYTES + 5, 1)
    cluster.members[0].disk.cold = True
    cluster.fetch(0, 0)
    cluster.settle()
    assert cluster.members[0].offline


# --- Several at once, and other kinds of damage -----------------------------------------------------------------------


def test_replicas_damaged_at_different_places_repair_themselves_one_after_the_other() -> None:
    """S1, S6: each from those that are intact there."""
    cluster = Repairing(brokers=3)
    before = b"".join(cluster.content(0))
    for number, segment in ((1, 0), (2, 1)):
        cluster.flip(number, HEADER_BYTES + 5, segment)
        cluster.find(number, segment)
    cluster.accept(1)
    assert b"".join(cluster.content(1)) == before
    # The epoch rose meanwhile: the other one's report is refused, and it reports again.
    ((_, _, done),) = cluster.members[2].losses
    cluster.members[2].losses.clear()
    done(LossAnswer.AGAIN)
    cluster.scheduler.advance(ASK_AGAIN_SECONDS)
    cluster.accept(2)
    assert b"".join(cluster.content(2)) == before
    cluster.set_isr(0, 1, 2)
    cluster.flip(0, HEADER_BYTES + 5, 2)
    cluster.find(0, 2)
    cluster.accept(0)
    cluster.elect(1, isr=[1, 2])
    cluster.settle()
    assert [b"".join(cluster.content(number)) for number in range(3)] == [before] * 3


def test_quarantined_files_stay_until_the_replica_is_in_sync_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """S1: until then they may be records that all others have lost."""
    monkeypatch.setattr(quarantine, "FILES_KEPT", 1)
    cluster = Repairing()
    cluster.flip(1, HEADER_BYTES + 5)
    cluster.find(1)
    cluster.accept(1)
    aside = quarantined(cluster, 1)
    assert len(aside) > 1 and cluster.log_end(1) == (RECORDS, RECORDS)
    cluster.set_isr(0, 1)
    cluster.settle()
    assert quarantined(cluster, 1) == aside[:1], "what is damaged lies lowest"


def lose_a_sector(monkeypatch: pytest.MonkeyPatch, cluster: Repairing, number: int, position: int) -> None:
    """Reading that byte of the first segment fails from now on."""
    inode = cluster.members[number].disk.inode_of(SEGMENT)
    pread = SimFile.pread

    def broken(self: SimFile, length: int, start: int) -> bytes:
        if self.inode is inode and start <= position < start + length:
            raise DiskFailed("read: Input/output error")
        return pread(self, length, start)

    monkeypatch.setattr(SimFile, "pread", broken)


@pytest.mark.parametrize("batch", [0, 2])
def test_an_unreadable_sector_is_fetched_again(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Repairing()
    before = b"".join(cluster.content(1))
    length = len(cluster.content(0)[0]) // 5
    lose_a_sector(monkeypatch, cluster, 0, batch * length + HEADER_BYTES + 5)
    if batch:
        assert cluster.read_cold(0, 0) == [""], "what can be read is served"
    assert cluster.read_cold(0, batch) == ["replica_not_available"]
    assert not cluster.members[0].manager.drivers[tp(0)].replica.offline
    cluster.accept(0)
    cluster.elect(1, isr=[1])
    cluster.settle()
    assert f"{0:020d}.log.quarantined" in quarantined(cluster, 0), "all of it: it cannot be copied"
    assert b"".join(cluster.content(0)) == before


def test_a_missing_segment_is_fetched_again() -> None:
    cluster = Repairing()
    before = b"".join(cluster.content(0))
    cluster.members[0].disk.remove(SEGMENT)
    fetch = cluster.fetch(0, 0)
    cluster.settle()
    assert fetch.errors == ["disk_failed"]
    cluster.accept(0)
    cluster.elect(1, isr=[1])
    cluster.settle()
    assert b"".join(cluster.content(0)) == before


@pytest.mark.parametrize("checked", [replication_pushes.CHECKED_BYTES, 1])
def test_a_leader_learns_of_damage_from_the_follower_that_refuses_it(
    checked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes in the page cache go to a follower unchecked, but the first batch of its fetch is checked: otherwise it
    would get the same damaged bytes repeatedly, and drop the link of all partitions each time."""
    monkeypatch.setattr(replication_pushes, "CHECKED_BYTES", checked)
    cluster = Repairing()
    cluster.leader_end(1, 0).paused = True
    for _ in range(RECORDS):
        cluster.produce(0, size=100)
        cluster.settle()
    cluster.flip(0, HEADER_BYTES + 5, 3)
    cluster.members[1].links[0].close()
    for _ in range(40):
        cluster.settle()
        if not cluster.members[1].links[0].open:
            cluster.dial(1, 0)
        cluster.scheduler.advance(0.1)
    assert cluster.log_end(1) == (15, 15), "what is good was taken"
    assert len(cluster.members[0].losses) == 1
    dropped = [event for event, _ in cluster.members[1].logger.lines].count("replication link dropped")
    assert dropped == (1 if checked == 1 else 0)


def test_an_unreachable_quorum_is_asked_with_growing_pauses() -> None:
    cluster = Repairing()
    cluster.flip(1, HEADER_BYTES + 5)
    cluster.find(1)
    waits = []
    for _ in range(7):
        ((_, _, done),) = cluster.members[1].losses
        cluster.members[1].losses.clear()
        done(LossAnswer.AGAIN)
        waits.append(0)
        while not cluster.members[1].losses:
            cluster.scheduler.advance(1.0)
            waits[-1] += 1
    assert waits == [1, 2, 4, 8, 16, LAST_COPY_SECONDS, LAST_COPY_SECONDS]
