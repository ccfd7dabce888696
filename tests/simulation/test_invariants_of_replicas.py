"""Each invariant of replicas can fail: a small correct world is broken in one place, and the violation is found.

All tests use one world, with the numbers of `jepsen_like/simulator/truth/README.md` (12 to 15, 20, 21, 24, 25 and
those without); each test restores the state that it changed. The first test shows that nothing is found in the correct
world.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from jepsen_like.simulator.brokers.node import SimNode
from jepsen_like.simulator.cluster.run import SimulatedWorld, in_a_hurry
from jepsen_like.simulator.cluster.schedule import Operation, draw
from jepsen_like.simulator.truth.committed_log import Batch
from jepsen_like.simulator.truth.invariants import LOOKS_AT_IMAGES
from jepsen_like.simulator.truth.mirror import Mirror
from jepsen_like.simulator.world.violation import Violation
from metadata.records.events import MetadataEvent
from metadata.view import PartitionChanged
from partitions.driver.driver import PartitionDriver
from partitions.replica.followers import Followers
from partitions.replica.isr import IsrState
from partitions.replica.leader import Leader
from raftlog.errors import InvariantViolation
from raftlog.model import BrokerId, LeaderEpoch, PartitionEpoch, PartitionRecord
from tests.support.partitions.committed import batch

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
        """Let the quorum decide this after that."""
        watching: list[Callable[[int, Sequence[MetadataEvent]], None]] = []
        node: Any = SimpleNamespace(
            node_id=BrokerId(99),
            broker=SimpleNamespace(view=SimpleNamespace(subscribe=watching.append)),
            registration=self.leading.registration,
        )
        self.truth.follow(node)
        self.partition.record = before
        watching[0](7, [PartitionChanged(record)])


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


def test_nothing_is_found_in_a_correct_world(broken: Broken) -> None:
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


@pytest.mark.parametrize("may_lose", [False, True])
def test_14_every_electable_replica_has_every_committed_record(
    may_lose: bool, broken: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if its leader does not count it, and with `flush=os` as well: only a recovery election may lose records."""
    monkeypatch.setattr(broken.partition, "may_lose", may_lose)
    monkeypatch.setattr(broken.driver(broken.following).log, "stable_end_offset", 0)
    monkeypatch.setattr(Followers, "stable_end_of", lambda followers, member: None)
    with pytest.raises(Violation, match=r"S6: node . may be elected by .* only up to 0"):
        broken.look()


def test_14_and_has_the_same_batches(broken: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = broken.truth._mirror_of(broken.following.node_id, broken.driver(broken.following))
    other = [batch._replace(crc=batch.crc ^ 1) for batch in mirror.batches]
    monkeypatch.setattr(mirror, "batches", other)
    monkeypatch.setattr(mirror, "verified", 0)
    with pytest.raises(Violation, match="has Batch"):
        broken.look()


def test_15_a_new_leader_has_every_committed_record(broken: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    end = broken.partition.log.end_offset
    lost = Batch(end, end + 1, broken.record.leader_epoch, 1)
    monkeypatch.setattr(broken.partition.log, "batches", [*broken.partition.log.batches, lost])
    mirror = broken.truth._mirror_of(broken.leading.node_id, broken.driver(broken.leading))
    monkeypatch.setattr(mirror, "shape", None)
    monkeypatch.setattr(mirror, "leader_mark", None)
    with pytest.raises(Violation, match=r"S6: the elected node . lacks"):
        broken.look()


def after_a_recovery_election(broken: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more record is committed. The leader does not have it, and was elected by a recovery election."""
    log = copy.deepcopy(broken.partition.log)
    log.extend(batch(log.end_offset, b"lost", epoch=broken.record.leader_epoch))
    monkeypatch.setattr(broken.partition, "log", log)
    monkeypatch.setattr(broken.partition, "losing", broken.record.leader_epoch)
    monkeypatch.setattr(broken.partition, "_exposed", {})
    monkeypatch.setattr(broken.truth, "lost", 0)
    mirror = broken.truth._mirror_of(broken.leading.node_id, broken.driver(broken.leading))
    monkeypatch.setattr(mirror, "shape", None)
    monkeypatch.setattr(mirror, "leader_mark", None)


def test_15_the_winner_of_a_recovery_election_may_lack_records(broken: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    after_a_recovery_election(broken, monkeypatch)
    broken.look()
    assert broken.truth.lost == 1


def test_14_after_a_recovery_election_every_electable_replica_has_what_its_winner_had_stable(
    broken: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_a_recovery_election(broken, monkeypatch)
    monkeypatch.setattr(broken.driver(broken.following).log, "stable_end_offset", 0)
    monkeypatch.setattr(Followers, "stable_end_of", lambda followers, member: None)
    with pytest.raises(Violation, match=r"S6: node . may be elected by .* only up to 0"):
        broken.look()


def test_s4_every_replica_is_compared_again_after_a_recovery_election(
    broken: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[int] = []
    monkeypatch.setattr(Mirror, "compare_anew_from", lambda mirror, end_offset: compared.append(end_offset))
    end = broken.partition.log.end_offset
    after_a_recovery_election(broken, monkeypatch)
    broken.look()
    assert len(compared) >= len(broken.record.isr) and set(compared) == {end}


def test_17_a_replica_has_the_committed_records_below_its_high_watermark(
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


def test_20_a_replica_does_not_count_in_an_epoch_that_it_does_not_know(
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


def test_21_a_replica_that_joins_the_isr_has_reported_in_this_incarnation(
    broken: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Followers, "stable_end_of", lambda followers, member: None)
    with pytest.raises(Violation, match=r"S6: node . joined the ISR of .* was not in contact in this life"):
        broken.learn(*grown(broken))


def test_21_and_has_its_leaders_start(broken: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_24_the_image_of_each_node_is_checked_separately(broken: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a node that was never the first to apply an entry."""

    def wrong() -> None:
        raise InvariantViolation("a partition belongs to no topic")

    assert broken.following.quorum is not None
    monkeypatch.setattr(broken.following.quorum.node, "check_invariants", wrong)
    monkeypatch.setattr(broken.truth.agreement, "_seen", {})
    with pytest.raises(InvariantViolation, match="belongs to no topic"):
        for _ in range(LOOKS_AT_IMAGES):
            broken.truth.look_around()


def test_deleted_records_stay_deleted_on_the_disk_of_every_member(
    broken: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broken.partition, "_deleted", (broken.record.leader_epoch, 1))
    with pytest.raises(Violation, match=r"S1: node . may be elected by .* was reported as deleted"):
        broken.look()


def test_stable_records_are_on_the_disk(broken: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_broken_rule_of_the_product_that_it_would_only_log_is_found(
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


def test_damage_on_disk_is_ignored_until_it_is_noticed_and_must_then_be_repaired(broken: Broken) -> None:
    """S9: the checks of the world use the written content; the world is not healthy before the damage is repaired."""
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


def test_operations_name_their_subject(broken: Broken) -> None:
    done = dict(broken.world.operations.done)
    broken.world.operations.carry_out(Operation(0.0, "elect", 0))
    assert broken.world.operations.done == done, "who leads is not elected"
