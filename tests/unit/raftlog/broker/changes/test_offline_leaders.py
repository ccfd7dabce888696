"""An elected leader that cannot lead gives the leadership away, and tries until another replica has it (S10)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from metadata.commands.cluster import ElectLeaders, SetFeatureLevel
from metadata.commands.envelope import Command
from metadata.commands.replicas import RENEWAL_FEATURE_LEVEL, RenewLeadership
from metadata.commands.results import CommandResult, Done, Elected
from metadata.quorum.port import Fate, Outcome
from raftlog.broker.changes import offline_leaders
from raftlog.broker.changes.offline_leaders import LOOK_AGAIN_SECONDS, OfflineLeaders
from raftlog.model import BrokerId, TopicPartition
from tests.support.metadata.cluster import TOPIC, TP, Cluster
from tests.support.partitions.manual import ManualScheduler
from tests.support.partitions.replication_cluster import QuietLogger

HERE = BrokerId(0)
LOST = Outcome(Fate.UNKNOWN, detail="no answer")
NOT_TAKEN = Outcome(Fate.REFUSED, detail="nobody leads the quorum")


class Node:
    """Broker 0 of three, which is the leader; its replicas in `offline` are out of service."""

    def __init__(self, partitions: int = 1) -> None:
        self.cluster = Cluster(3, partitions=partitions, feature_level=RENEWAL_FEATURE_LEVEL)
        self.scheduler = ManualScheduler()
        self.offline = {TopicPartition(TOPIC, number) for number in range(partitions)}
        self.waiting: set[TopicPartition] = set()
        """Partitions that this broker may lead in a later leader epoch."""
        self.proposed: list[tuple[Command, Callable[[Outcome], None]]] = []
        self.leaders = OfflineLeaders(
            HERE,
            self.cluster.view,
            self.scheduler,
            self.propose,
            self.offline.__contains__,
            self.waiting.__contains__,
            lambda: self.cluster.incarnation(0),
            QuietLogger(),
        )

    def propose(self, command: Command, done: Callable[[Outcome], None]) -> None:
        self.proposed.append((command, done))

    def fails(self, *partitions: int) -> None:
        for number in partitions or (0,):
            self.leaders.on_offline(TopicPartition(TOPIC, number), "EIO")
        self.scheduler.run()

    def apply(self) -> Elected:
        """Apply the last proposal, which is an election."""
        result = self.decide()
        assert isinstance(result, Elected)
        return result

    def decide(self) -> CommandResult:
        """Apply the last proposal of any kind."""
        command, done = self.proposed[-1]
        result = self.cluster.do(command)
        done(Outcome(Fate.APPLIED, self.cluster.image.index, result))
        return result

    def lose(self, outcome: Outcome) -> None:
        self.proposed[-1][1](outcome)

    def wait(self, seconds: float = LOOK_AGAIN_SECONDS) -> None:
        self.scheduler.advance(seconds)
        self.scheduler.run()


@pytest.fixture
def node() -> Node:
    return Node()


def test_another_member_of_the_isr_is_elected_at_once_and_only_once(node: Node) -> None:
    node.fails()
    node.apply()
    assert node.cluster.partition.leader == 1
    node.wait(10)
    assert len(node.proposed) == 1


@pytest.mark.parametrize("outcome", [LOST, NOT_TAKEN], ids=["lost", "not taken"])
def test_a_failed_proposal_is_repeated(node: Node, outcome: Outcome) -> None:
    """Without it the partition would keep a leader that cannot lead: its record does not change, so no other code path
    checks it again."""
    node.fails()
    for _ in range(3):
        node.lose(outcome)
        node.wait()
    assert len(node.proposed) == 4
    node.apply()
    assert node.cluster.partition.leader == 1


def test_the_next_candidate_is_proposed_after_one_that_died(node: Node) -> None:
    node.fails()
    node.cluster.fence(1)
    (refused,) = node.apply().refusals
    assert refused is not None and node.cluster.partition.leader == HERE
    node.wait()
    node.apply()
    assert node.cluster.partition.leader == 2


def test_without_a_candidate_it_waits_for_one(node: Node) -> None:
    node.cluster.fence(1, 2)
    node.fails()
    node.wait(5)
    assert node.proposed == []
    node.cluster.restart(1)
    node.cluster.set_isr(0, 1)
    node.wait()
    node.apply()
    assert node.cluster.partition.leader == 1


def test_a_reelected_leader_gives_the_leadership_away_again_at_once(node: Node) -> None:
    node.fails()
    node.apply()
    assert node.cluster.elect(0) == ""
    node.fails()
    assert len(node.proposed) == 2


def test_replicas_in_service_and_those_led_by_others_are_left_alone(node: Node) -> None:
    node.fails()
    node.lose(LOST)
    node.offline.clear()
    node.wait(5)
    node.offline.add(TP)
    assert node.cluster.elect(1) == ""
    node.fails()
    node.wait(5)
    assert len(node.proposed) == 1


def test_the_partitions_of_a_disk_are_proposed_in_bounded_commands_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(offline_leaders, "MAX_ELECTIONS_PER_COMMAND", 3)
    node = Node(partitions=7)
    node.fails(*range(7))
    for sizes in ([3], [3, 3], [3, 3, 1]):
        assert [len(command.elections) for command, _ in node.proposed if isinstance(command, ElectLeaders)] == sizes
        node.apply()
        node.scheduler.run()
    node.wait(5)
    assert len(node.proposed) == 3
    assert {record.leader for record in node.cluster.image.partitions.values()} == {1}


def test_a_reopened_replica_without_a_candidate_requests_a_new_epoch(node: Node) -> None:
    """It does so only at the feature level of that command; until then it checks again at intervals."""
    node.cluster.fence(1, 2)
    before = node.cluster.partition
    node.fails()
    node.wait()
    assert node.proposed == []
    node.waiting.add(TP)
    node.wait()
    assert node.proposed == [], "an older node may not know the command"
    node.cluster.do(SetFeatureLevel(RENEWAL_FEATURE_LEVEL))
    node.wait()
    assert [type(command) for command, _ in node.proposed] == [RenewLeadership]
    assert isinstance(node.decide(), Done)
    after = node.cluster.partition
    assert (after.leader, after.leader_epoch, after.isr) == (HERE, before.leader_epoch + 1, before.isr)
    node.offline.clear()
    node.wait(5)
    assert len(node.proposed) == 1


def test_a_reopened_replica_with_a_candidate_requests_no_epoch(node: Node) -> None:
    node.waiting.add(TP)
    node.fails()
    node.apply()
    assert node.cluster.partition.leader == 1


def test_several_leaderships_are_renewed_one_after_the_other() -> None:
    node = Node(partitions=3)
    node.cluster.fence(1, 2)
    node.cluster.do(SetFeatureLevel(RENEWAL_FEATURE_LEVEL))
    node.waiting |= node.offline
    before = [record.leader_epoch for record in node.cluster.image.partitions.values()]
    node.fails(0, 1, 2)
    for _ in range(3):
        result = node.decide()
        assert isinstance(result, Done), result
        node.scheduler.run()
    after = [record.leader_epoch for record in node.cluster.image.partitions.values()]
    assert after == [epoch + 1 for epoch in before]
