"""Each invariant of replicas can fail: a small world that runs well is broken in one place, and is found broken.

One world for all of them, by the numbers of `jepsen_like/README.md` (12 to 15, 20, 21, 24, 25 and what has none); each
test puts back what it changed. That nothing is found where nothing is broken is the first test.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from jepsen_like.simulator.brokers.node import SimNode
from jepsen_like.simulator.cluster.run import SimulatedWorld, in_a_hurry
from jepsen_like.simulator.cluster.schedule import Operation, draw
from jepsen_like.simulator.truth.committed_log import Batch
from jepsen_like.simulator.truth.invariants import LOOKS_AT_IMAGES
from jepsen_like.simulator.world.violation import Violation
from metadata.view import PartitionChanged
from partitions.driver.driver import PartitionDriver
from partitions.replica.isr import IsrState
from partitions.replica.leader import Leader
from raftlog.errors import InvariantViolation
from raftlog.model import LeaderEpoch, PartitionEpoch, PartitionRecord

SECONDS = 6.0


class Broken:
    """A world at a moment when one of its partitions has a leader, followers and committed batches."""

    def __init__(self, world: SimulatedWorld) -> None:
        self.world = world
        self.truth = world.truth
        self.partition = next(
            one
            for _, one in sorted(world.truth.partitions.items())
            if one.record is not None and len(one.record.isr) == 3 and one.log.batches and not one.log.compacts
        )
        self.tp = self.partition.topic_partition
        assert self.partition.record is not None
        self.record: PartitionRecord = self.partition.record
        self.leading = world.nodes[self.record.leader]
        self.following = world.nodes[next(one for one in self.record.isr if one != self.record.leader)]

    def driver(self, node: SimNode) -> PartitionDriver:
        assert node.broker is not None
        return node.broker.manager.drivers[self.tp]

    @property
    def leader(self) -> Leader:
        leader = self.driver(self.leading).replica.leader
        assert leader is not None
        return leader

    def look(self) -> None:
        self.truth.look_around()

    def learn(self, before: PartitionRecord, record: PartitionRecord) -> None:
        """The quorum decided this after that."""
        assert self.leading.broker is not None
        self.partition.record = before
        self.truth._learn(self.leading.broker.view, [PartitionChanged(record)])


@pytest.fixture(scope="module")
def running() -> Iterator[SimulatedWorld]:
    schedule = draw(1, SECONDS, faulty=False)
    world = SimulatedWorld(schedule)
    with in_a_hurry(schedule):
        world._run_until(SECONDS)
        world.operations.producing = False
        world._run_until(SECONDS + 1.0)
        yield world


@pytest.fixture
def broken(running: SimulatedWorld) -> Iterator[Broken]:
    broken = Broken(running)
    record = broken.partition.record
    yield broken
    broken.partition.record = record
    broken.truth._moved = {}


def test_nothing_is_found_where_nothing_is_broken(broken: Broken) -> None:
    broken.look()
    broken.truth.clients.check()
    assert broken.partition.log.records


def test_12_a_counted_member_has_what_is_below_the_high_watermark(
    broken: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broken.driver(broken.following).log, "stable_end_offset", 0)
    with pytest.raises(Violation, match=r"S6: node . counts for .* has stable only 0"):
        broken.look()


def test_13_a_leader_counts_on_the_whole_isr(broken: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IsrState, "maximal", property(lambda isr: (broken.record.leader,)))
    with pytest.raises(Violation, match=r"S6: the leader of .* does not count on"):
        broken.look()


def test_14_whoever_may_be_elected_has_every_committed_record(broken: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its leader does not count it."""
    monkeypatch.setattr(broken.driver(broken.following).log, "stable_end_offset", 0)
    monkeypatch.setattr(broken.leader._followers, "stable_end_of", lambda member: None)
    with pytest.raises(Violation, match=r"S6: node . may be elected by .* only up to 0"):
        broken.look()


def test_14_and_has_it_batch_by_batch(broken: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = broken.truth._mirror_of(broken.following.node_id, broken.driver(broken.following))
    other = [batch._replace(crc=batch.crc ^ 1) for batch in mirror.batches]
    monkeypatch.setattr(mirror, "batches", other)
    monkeypatch.setattr(mirror, "verified", 0)
    with pytest.raises(Violation, match="has Batch"):
        broken.look()


def test_15_who_begins_to_lead_has_every_committed_record(broken: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    end = broken.partition.log.end_offset
    lost = Batch(end, end + 1, broken.record.leader_epoch, 1)
    monkeypatch.setattr(broken.partition.log, "batches", [*broken.partition.log.batches, lost])
    mirror = broken.truth._mirror_of(broken.leading.node_id, broken.driver(broken.leading))
    monkeypatch.setattr(mirror, "shape", None)
    monkeypatch.setattr(mirror, "leader_mark", None)
    with pytest.raises(Violation, match=r"S6: the elected node . lacks"):
        broken.look()


def test_17_what_a_replica_has_below_its_high_watermark_is_what_was_committed(
    broken: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S4: on a replica that is no member."""
    alone = msgspec.structs.replace(broken.record, isr=(broken.record.leader,))
    broken.partition.record = alone
    mirror = broken.truth._mirror_of(broken.following.node_id, broken.driver(broken.following))
    monkeypatch.setattr(mirror, "batches", [batch._replace(crc=batch.crc ^ 1) for batch in mirror.batches])
    monkeypatch.setattr(mirror, "verified", 0)
    monkeypatch.setattr(mirror, "shape", None)
    with pytest.raises(Violation, match=r"S4: node . has Batch"):
        broken.look()


def test_20_nobody_counts_in_an_epoch_of_which_it_has_not_heard(
    broken: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = broken.driver(broken.following).replica
    earlier = msgspec.structs.replace(broken.record, leader_epoch=LeaderEpoch(broken.record.leader_epoch - 1))
    monkeypatch.setattr(replica, "record", earlier)
    with pytest.raises(Violation, match=r"S6: node . counts for .* and is in epoch"):
        broken.look()


def grown(broken: Broken) -> tuple[PartitionRecord, PartitionRecord]:
    """A record without a member, and the next one with it."""
    without = tuple(one for one in broken.record.isr if one != broken.following.node_id)
    before = msgspec.structs.replace(broken.record, isr=without, commit_set=without)
    return before, msgspec.structs.replace(
        broken.record, partition_epoch=PartitionEpoch(broken.record.partition_epoch + 1)
    )


def test_21_who_joins_the_isr_was_heard_in_this_life(broken: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broken.leader._followers, "stable_end_of", lambda member: None)
    with pytest.raises(Violation, match=r"S6: node . joined the ISR of .* was not heard in this life"):
        broken.learn(*grown(broken))


def test_21_and_has_the_start_of_its_leader(broken: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broken.leader, "epoch_start_offset", 1 << 40)
    with pytest.raises(Violation, match=r"S6: node . joined the ISR of .* without the start"):
        broken.learn(*grown(broken))


def test_24_all_nodes_apply_the_same(broken: Broken) -> None:
    index = max(broken.truth.agreement._applied)
    with pytest.raises(Violation, match=r"S7: node 0 applied something else"):
        broken.truth.agreement.check_events(broken.world.nodes[0].node_id, index, [PartitionChanged(broken.record)])


def test_24_one_node_leads_the_quorum_in_a_term(broken: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = broken.world.nodes
    leads = next(node for node in nodes if node.quorum and node.quorum.node.status().leader == node.node_id)
    other = next(node for node in nodes if node is not leads)
    assert leads.quorum is not None
    term = leads.quorum.node.status().term
    monkeypatch.setitem(broken.truth.agreement._terms, term, other.node_id)
    monkeypatch.setattr(broken.truth.agreement, "_marks", {})
    with pytest.raises(Violation, match=r"S7: nodes .* both lead the quorum"):
        broken.truth.agreement.check_quorum(leads)


def test_24_the_image_of_each_node_is_looked_at_by_itself(broken: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of one that was never the first to apply an entry."""

    def wrong() -> None:
        raise InvariantViolation("a partition belongs to no topic")

    assert broken.following.quorum is not None
    monkeypatch.setattr(broken.following.quorum.node, "check_invariants", wrong)
    monkeypatch.setattr(broken.truth.agreement, "_seen", {})
    with pytest.raises(InvariantViolation, match="belongs to no topic"):
        for _ in range(LOOKS_AT_IMAGES):
            broken.truth.look_around()


def test_what_was_deleted_stays_deleted_on_the_disk_of_every_member(
    broken: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broken.partition, "_deleted", (broken.record.leader_epoch, 1))
    with pytest.raises(Violation, match=r"S1: node . may be elected by .* was said to be deleted"):
        broken.look()


def test_what_is_called_stable_is_on_the_disk(broken: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = broken.driver(broken.following)
    mirror = broken.truth._mirror_of(broken.following.node_id, driver)
    monkeypatch.setattr(mirror, "shape", None)
    mirror.durable.inode, mirror.durable.offset = None, -1
    disk = broken.following.disk
    names = {name for name in disk.files() if name.startswith(driver.log.path) and name.endswith(".log")}
    monkeypatch.setattr(disk, "durable_files", lambda folder: [])
    assert names
    with pytest.raises(Violation, match=r"S1: node . calls .* and on its disk no file holds offset"):
        broken.look()


def test_a_rule_of_the_product_that_is_broken_is_found_where_it_would_only_log(
    broken: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = broken.driver(broken.following)
    assert driver.replica.follower is not None
    monkeypatch.setattr(driver.replica.follower, "high_watermark", 1 << 40)
    with pytest.raises(InvariantViolation, match="high watermark"):
        broken.look()


def test_an_acknowledgement_comes_from_a_replica(broken: Broken) -> None:
    gone = type(broken.tp)(broken.tp.topic_id, 99)
    with pytest.raises(Violation, match=r"S1: node . acknowledges for"):
        broken.truth.acknowledged(broken.leading, gone, 1)
    with pytest.raises(Violation, match=r"S1: node . deletes of"):
        broken.truth.deleted(broken.leading, gone, 1)


def test_rot_is_not_seen_until_somebody_notices_and_then_has_to_be_mended(broken: Broken) -> None:
    """S9: what checks the world sees what was written; the world is not well before the rot is gone."""
    disk, path = broken.following.disk, broken.driver(broken.following).log.path
    name = next(name for name in disk.files() if name.startswith(path) and name.endswith(".log"))
    written = disk.read(name)
    disk.rot(name, 30, 4)
    broken.truth.rotting.append(disk)
    assert disk.read(name) != written
    with broken.truth.as_written():
        assert disk.read(name) == written
    assert disk.read(name) != written and disk.rotten_files() == [name]
    broken.look()
    disk.rot(name, 30, 4)
    broken.truth.rotting.clear()
    assert disk.read(name) == written


def test_operations_say_whom_they_are_about(broken: Broken) -> None:
    assert not broken.world.operations._act(Operation(0.0, "elect", 0)), "who leads is not elected"
