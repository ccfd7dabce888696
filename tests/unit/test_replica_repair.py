"""Damage in a running replica: the quorum is asked first, then it is cut back and fetches again what it lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partitions.log_slice import LogDamaged
from partitions.replica_folders import folder_of
from partitions.replica_repair import ASK_AGAIN_SECONDS, LAST_COPY_SECONDS, LossAnswer
from raftlog.model import NO_BROKER, NO_INCARNATION, BrokerId, LeaderEpoch, PartitionEpoch
from raftlog.record_batch import HEADER_BYTES
from tests.support.replication_cluster import ReplicationCluster, tp

SEGMENT = f"{folder_of(tp(0))}/{0:020d}.log"
RECORDS = 12


class Repairing(ReplicationCluster):
    """Two brokers in sync on twelve records; what a broker reports lost waits in `member.losses`."""

    def __init__(self) -> None:
        super().__init__(repairs=True, cache_bytes=0, **{"segment.bytes": "1024"})
        for _ in range(RECORDS):
            self.produce(0, size=100)
            self.settle()

    def flip(self, number: int, position: int) -> None:
        self.members[number].disk.flip(SEGMENT, position, 1)

    def read_cold(self, number: int, offset: int = 0) -> list[str]:
        """A consumer's read that goes to the disk, where the CRC is checked."""
        self.members[number].disk.cold = True
        fetch = self.fetch(number, offset)
        self.settle()
        self.members[number].disk.cold = False
        return fetch.errors

    def find(self, number: int) -> None:
        """As the scrubber does."""
        driver = self.members[number].manager.drivers[tp(0)]
        driver.on_load_failed(
            LogDamaged("bits rotted", driver.log._segments.all[0].base_offset, driver.log._generation)
        )
        self.settle()

    def accept(self, number: int) -> None:
        """The quorum takes the report: the record without the replica reaches everybody, then the answer comes."""
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


def test_a_follower_is_whole_again() -> None:
    """S6, S9: it is cut only after the quorum took it out of the ISR."""
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


def test_while_the_quorum_is_asked_the_replica_hears_of_nothing_newer() -> None:
    """In a newer epoch its leader would take what it is about to lose for its own (S6)."""
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
    """Nobody has the data: what is good is served, appends go on, nothing is cut."""
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


def test_damage_that_retention_removed_needs_no_repair() -> None:
    cluster = Repairing()
    cluster.flip(0, HEADER_BYTES + 5)
    cluster.read_cold(0)
    ((_, _, done),) = cluster.members[0].losses
    cluster.members[0].losses.clear()
    done(LossAnswer.LAST_COPY)
    driver = cluster.members[0].manager.drivers[tp(0)]
    driver.log_start.advance(driver.log.log_end_offset)
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
