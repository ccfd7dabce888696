"""The controller and reassignments in virtual time: how many begin, how they end; leaders that are out of place."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from metadata.commands.cluster import AlterIsr, CreateTopic, ElectLeaders
from metadata.commands.fields import IsrMember
from metadata.commands.replicas import AlterReassignments, BeginMoves, Reassignment
from metadata.controller.moves import MAX_MOVES_PER_BROKER
from raftlog.model import BrokerId, TopicPartition
from tests.support.metadata.cluster import TOPIC, Cluster
from tests.support.metadata.world import World


def cluster_of(partitions: int, *replicas: int, brokers: int = 5) -> Cluster:
    cluster = Cluster(0)
    for broker in range(brokers):
        cluster.restart(broker)
    cluster.do(CreateTopic("orders", TOPIC, (tuple(map(BrokerId, replicas)),) * partitions))
    return cluster


def ask(cluster: Cluster, *target: int) -> None:
    """Reassign all partitions."""
    ask_some(cluster, range(len(cluster.image.partitions)), *target)


def ask_some(cluster: Cluster, numbers: Sequence[int], *target: int) -> None:
    records = [cluster.image.partitions[TopicPartition(TOPIC, number)] for number in numbers]
    cluster.do(
        AlterReassignments(
            tuple(
                Reassignment(TOPIC, r.topic_partition.partition, r.partition_epoch, tuple(map(BrokerId, target)))
                for r in records
            )
        )
    )


def catch_up(cluster: Cluster, number: int) -> None:
    """All replicas of a partition join its ISR."""
    record = cluster.image.partitions[TopicPartition(TOPIC, number)]
    isr = tuple(IsrMember(broker, cluster.incarnation(broker)) for broker in sorted(record.replicas))
    leader = (record.leader, record.leader_incarnation, record.leader_epoch, record.partition_epoch)
    cluster.do(AlterIsr(TOPIC, number, *leader, isr))


def moving(cluster: Cluster) -> list[int]:
    return sorted(tp.partition for tp in cluster.image.moving)


def test_a_broker_receives_a_few_partitions_at_a_time_and_finally_all() -> None:
    cluster = cluster_of(2 * MAX_MOVES_PER_BROKER + 1, 0, 1, 2)
    ask(cluster, 0, 1, 3)
    world = World(cluster)
    most = 0
    for _ in range(100):
        world.run(0.6)
        most = max(most, len(moving(cluster)))
        if not cluster.image.reassigning:
            break
        catch_up(cluster, moving(cluster)[0])
    assert most == MAX_MOVES_PER_BROKER
    assert {record.replicas for record in cluster.image.partitions.values()} == {(0, 1, 3)}
    assert all(not isinstance(command, ElectLeaders) for _, command in world.decided), "nobody's leader changed"


def test_moves_to_a_dead_broker_do_not_hold_up_others_and_begin_when_it_returns() -> None:
    cluster = cluster_of(2, 0, 1, 2)
    world = World(cluster)
    world.run(1)
    targets = ((0, 1, 3), (0, 1, 4))
    for number, target in enumerate(targets):
        record = cluster.image.partitions[TopicPartition(TOPIC, number)]
        chosen = tuple(map(BrokerId, target))
        cluster.do(AlterReassignments((Reassignment(TOPIC, number, record.partition_epoch, chosen),)))
        if number == 0:
            world.die(3)
            world.held = []
            world.run(1.0)  # the fence comes before anything else
            world.held = None
            cluster.fence(3)
    world.new_controller()
    world.run(2)
    assert moving(cluster) == [1]
    world.restart(3)
    world.run(2)
    assert moving(cluster) == [0, 1]


def test_a_move_that_removes_the_leader_ends_with_one_election() -> None:
    cluster = cluster_of(1, 0, 1, 2)
    world = World(cluster)
    ask(cluster, 3, 4, 1)
    assert [type(command) for command in world.run(1)] == [BeginMoves]
    catch_up(cluster, 0)
    (elected,) = world.run(1)
    assert isinstance(elected, ElectLeaders)
    record = cluster.image.partitions[TopicPartition(TOPIC, 0)]
    assert (record.replicas, record.leader, record.leader_epoch) == ((3, 4, 1), 3, 1)
    assert world.run(60) == []


def test_a_move_continues_with_another_controller_and_another_leader() -> None:
    cluster = cluster_of(1, 0, 1, 2)
    world = World(cluster)
    ask(cluster, 3, 4, 1)
    world.run(1)
    world.new_controller()
    world.die(0)
    world.run(2)
    assert world.leader in (1, 2)
    catch_up_live = cluster.isr_proposal(1, 2, 3, 4)
    cluster.do(catch_up_live)
    world.run(1)
    assert cluster.partition.replicas == (3, 4, 1) and world.leader in (3, 4, 1)


def test_moves_complete_under_short_lived_controllers() -> None:
    """Each knows only the image: a move that one began is completed by the next, and nothing is begun twice (S10)."""
    cluster = cluster_of(3, 0, 1, 2)
    world = World(cluster)
    ask(cluster, 3, 4, 1)
    begun = 0
    for _ in range(8):
        world.new_controller()
        begun += sum(len(command.moves) for command in world.run(0.8) if isinstance(command, BeginMoves))
        for number in moving(cluster)[:1]:
            catch_up(cluster, number)
    world.run(1)
    assert begun == 3
    assert {record.replicas for record in cluster.image.partitions.values()} == {(3, 4, 1)}


def test_partitions_that_wait_for_a_dead_broker_and_copy_nothing_do_not_hold_up_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A drain continues while many partitions wait to lose a replica until a member returns."""
    monkeypatch.setattr("metadata.controller.moves.MAX_MOVES_UNDER_WAY", 2)
    monkeypatch.setattr("metadata.image.reassignments.MAX_MOVES_UNDER_WAY", 2)
    cluster = cluster_of(4, 0, 1, 2)
    cluster.fence(2)
    ask_some(cluster, range(3), 0, 2)
    ask_some(cluster, [3], 0, 1, 3)
    assert moving(cluster) == [0, 1, 2]
    world = World(cluster)
    world.die(2)
    world.run(1)
    assert moving(cluster) == [0, 1, 2, 3]


def test_completions_are_checked_in_bounded_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metadata.controller.moves.MAX_LOOKED_AT", 2)
    cluster = cluster_of(7, 0, 1, 2)
    world = World(cluster)
    ask(cluster, 1, 2)
    assert moving(cluster) == list(range(7)), "each waits for another leader"
    decided = world.run(2)
    assert all(isinstance(command, ElectLeaders) and len(command.elections) <= 2 for command in decided)
    assert {record.replicas for record in cluster.image.partitions.values()} == {(1, 2)}


def test_a_lost_command_is_proposed_again() -> None:
    cluster = cluster_of(1, 0, 1, 2)
    world = World(cluster)
    ask(cluster, 0, 1, 3)
    world.held = []
    (lost,) = world.run(1)
    assert isinstance(lost, BeginMoves)
    world.held = None
    world.controller.settled(lost)
    world.run(1)
    assert moving(cluster) == [0]


def test_a_few_misplaced_leaders_are_left_where_they_are() -> None:
    cluster = cluster_of(20, 0, 1, 2)
    world = World(cluster, rebalance_after=5.0)
    world.run(6)
    elect_elsewhere(cluster, 2)
    assert world.run(30) == [], "10 % are tolerated"
    elect_elsewhere(cluster, 1, first=2)
    (moved,) = world.run(30)
    assert isinstance(moved, ElectLeaders) and len(moved.elections) == 3


def elect_elsewhere(cluster: Cluster, count: int, first: int = 0) -> None:
    from metadata.commands.fields import Election

    for number in range(first, first + count):
        record = cluster.image.partitions[TopicPartition(TOPIC, number)]
        election = Election(TOPIC, number, BrokerId(1), cluster.incarnation(1), record.partition_epoch)
        cluster.do(ElectLeaders((election,)))
