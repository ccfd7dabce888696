"""The controller in virtual time: which brokers are fenced, which lead, and that nothing is proposed twice."""

from __future__ import annotations

import pytest

from metadata.commands.cluster import AlterIsr, CreateTopic, ElectLeaders, FenceBroker, UnfenceBroker
from metadata.commands.envelope import Command, decode, encode
from metadata.commands.fields import IsrMember
from metadata.controller.moves import MAX_REBALANCED_AT_ONCE
from metadata.image.invariants import check
from raftlog.model import NO_BROKER, BrokerId, TopicPartition
from tests.support.metadata.at_once import apply
from tests.support.metadata.cluster import TP, Cluster, report
from tests.support.metadata.world import SESSION, TICK, World


def test_in_a_healthy_cluster_nothing_is_proposed() -> None:
    world = World(Cluster())
    assert world.run(60) == []


def test_a_dead_leader_is_fenced_and_replaced_within_a_session() -> None:
    world = World(Cluster())
    world.run(2)
    world.die(0)
    start = world.now
    fenced, elected = world.run(1.5)
    assert fenced == FenceBroker(BrokerId(0), world.cluster.incarnation(0))
    assert isinstance(elected, ElectLeaders)
    assert world.leader == 1
    assert world.decided[-1][0] - start <= SESSION + 3 * TICK
    assert world.cluster.partition.isr == (1, 2)


def test_a_new_controller_grants_everyone_a_full_session() -> None:
    world = World(Cluster())
    world.die(0)
    world.run(0.8)
    world.new_controller()
    assert world.run(SESSION - 2 * TICK) == []
    assert len(world.run(0.2)) == 2


def test_a_stall_of_the_controller_deposes_nobody() -> None:
    world = World(Cluster())
    world.run(1)
    world.now += 30
    # The controller notices the time before it reads the heartbeats that came meanwhile.
    assert world.controller.decide(world.now) == []
    assert world.run(2) == []


def test_a_broker_is_unfenced_when_its_view_has_its_registration() -> None:
    world = World(Cluster())
    world.run(1)
    world.cluster.start(1, report())
    incarnation = world.cluster.incarnation(1)
    world.die(1)
    assert world.controller.heartbeat(BrokerId(1), incarnation, incarnation - 1, world.now)
    assert world.run(0.1) == []
    assert world.controller.heartbeat(BrokerId(1), incarnation, incarnation, world.now)
    assert world.run(TICK) == [UnfenceBroker(BrokerId(1), incarnation)]


def test_a_heartbeat_of_another_incarnation_is_refused() -> None:
    world = World(Cluster())
    old = world.cluster.incarnation(1)
    world.cluster.start(1, report())
    assert not world.controller.heartbeat(BrokerId(1), old, 99, world.now)
    assert not world.controller.heartbeat(BrokerId(7), old, 99, world.now)


def test_a_broker_that_registered_and_died_leaves_the_isr() -> None:
    world = World(Cluster())
    world.run(1)
    world.die(2)
    world.cluster.start(2, report())
    assert world.cluster.partition.isr == (0, 1, 2)
    assert world.run(2) == [FenceBroker(BrokerId(2), world.cluster.incarnation(2))]
    assert world.cluster.partition.isr == (0, 1)


def test_a_stopping_broker_hands_over_at_once_and_is_left_alone() -> None:
    world = World(Cluster())
    world.run(1)
    world.die(0)
    world.beat(0, stopping=True)
    before = world.cluster.partition.leader_epoch
    elected, fenced = world.run(3 * TICK)
    assert isinstance(elected, ElectLeaders)
    assert isinstance(fenced, FenceBroker)
    record = world.cluster.partition
    assert (record.leader, record.leader_epoch, record.isr) == (1, before + 1, (1, 2)), "never without a leader"
    world.beat(0, stopping=True)
    assert world.run(2) == []


def test_a_stopping_broker_is_fenced_even_if_no_other_can_take_over() -> None:
    world = World(Cluster())
    world.run(1)
    world.die(1, 2)
    world.run(2)
    world.die(0)
    world.beat(0, stopping=True)
    (fenced,) = world.run(3 * TICK)
    assert isinstance(fenced, FenceBroker) and world.leader == NO_BROKER


def test_an_undecided_hand_over_delays_the_fence_by_half_a_second_at_most() -> None:
    world = World(Cluster())
    world.run(1)
    world.die(0)
    world.held = []
    world.beat(0, stopping=True)
    assert [type(command) for command in world.run(0.4)] == [ElectLeaders]
    assert [type(command) for command in world.run(0.2)] == [FenceBroker]


def test_a_command_in_flight_is_not_proposed_again() -> None:
    world = World(Cluster(partitions=3))
    world.run(1)
    world.die(0)
    world.held = []
    assert len(world.run(3)) == 1
    (fence,) = world.held
    world.settle(fence)
    world.held = []
    (elect,) = world.run(3)
    assert isinstance(elect, ElectLeaders)
    assert len(elect.elections) == 3


def test_a_lost_proposal_is_repeated() -> None:
    world = World(Cluster())
    world.run(1)
    world.die(0)
    world.held = []
    for kind in (FenceBroker, ElectLeaders):
        world.held = []
        (lost,) = world.run(2)
        assert isinstance(lost, kind)
        world.controller.settled(lost)
        world.held = []
        (again,) = world.run(0.1)
        assert again == lost
        world.settle(again)
    assert world.leader == 1


def test_only_a_broker_that_sent_a_heartbeat_is_elected() -> None:
    """Every broker of the image may be dead when a cluster restarts: 0 is here, 1 and 2 only seem to be."""
    world = World(Cluster())
    world.die(1, 2)
    world.restart(0, end=5)
    world.run(0.3)
    assert world.leader == 0
    assert world.cluster.partition.isr == (0, 1, 2)
    world.run(2)
    assert world.cluster.partition.isr == (0,)


def test_the_isr_goes_before_the_commit_set_even_if_it_reports_later() -> None:
    cluster = Cluster()
    cluster.fence(1, 0)
    cluster.unfence(0, 1)
    assert (cluster.partition.isr, cluster.partition.commit_set) == ((2,), (0, 2))
    world = World(cluster)
    world.die(2)
    world.run(0.1)
    assert world.leader == NO_BROKER
    world.up.add(2)
    world.run(0.3)
    assert world.leader == 2


def test_preferred_order_on_election() -> None:
    world = World(Cluster(5))
    world.run(1)
    world.die(0, 1)
    world.run(2)
    assert world.leader == 2


def test_thousands_of_partitions_fail_over_in_few_commands() -> None:
    cluster = Cluster(partitions=1)
    world = World(cluster)
    image = cluster.image
    create = CreateTopic("many", b"t" * 16, ((BrokerId(0), BrokerId(1), BrokerId(2)),) * 3000)  # type: ignore[arg-type]
    apply(image, image.index + 1, 1, decode(encode(create)))
    world.run(0.3)
    world.die(0)
    commands: list[Command] = []
    for _ in range(200):
        world.now += TICK
        for broker in (1, 2):
            world.beat(broker)
        for command in world.controller.decide(world.now):
            commands.append(command)
            apply(image, image.index + 1, cluster.term, decode(encode(command, term=cluster.term)))
            world.controller.settled(command)
    assert not image.leaderless
    assert len(commands) <= 10
    check(image)


# --- Recovery --------------------------------------------------------------------------------------------------------


def blackout(world: World) -> None:
    world.run(1)
    world.die(0, 1, 2)
    world.run(3)


def test_after_a_power_failure_the_first_eligible_to_return_leads() -> None:
    world = World(Cluster())
    blackout(world)
    assert world.leader == NO_BROKER
    world.restart(2, end=5)
    world.run(0.5)
    assert world.leader == 2


def test_if_all_truncated_their_logs_the_longest_leads_once_all_are_there() -> None:
    world = World(Cluster())
    blackout(world)
    members = set(world.cluster.partition.isr) | set(world.cluster.partition.commit_set)
    for broker, end in ((0, 4), (1, 6), (2, 5)):
        world.restart(broker, end=end, cut=True)
    world.run(0.5)
    assert world.leader == max(members, key=lambda member: (4, 6, 5)[member])


def test_recovery_waits_a_while_for_a_member_that_is_absent() -> None:
    cluster = Cluster()
    world = World(cluster, recovery_patience=3.0)
    for broker in (0, 1, 2):
        cluster.start(broker, report(0, broker, cut=broker != 0))
    world.die(0)
    world.run(2.5)
    assert cluster.partition.leader == NO_BROKER
    world.run(1.5)
    assert cluster.partition.leader == 2
    other = World(Cluster(), recovery_patience=3.0)
    for broker in (0, 1, 2):
        other.cluster.start(broker, report(0, broker, cut=broker != 0))
    other.die(0)
    other.run(2.0)
    other.up.add(0)
    other.run(0.3)
    assert other.leader == 0, "it was eligible, and came in time"


# --- Preferred leaders -----------------------------------------------------------------------------------------------


def test_leadership_returns_to_preferred_leaders_gently() -> None:
    cluster = Cluster(partitions=MAX_REBALANCED_AT_ONCE + 10)
    world = World(cluster, rebalance_after=30.0)
    world.run(1)
    world.die(0)
    world.run(2)
    world.restart(0)
    world.run(1)
    for record in cluster.image.partitions.values():
        assert record.leader == 1
    for topic_partition in list(cluster.image.partitions):
        add(cluster, topic_partition.partition)
    assert world.run(20) == []
    moves = world.run(35)
    assert all(isinstance(move, ElectLeaders) for move in moves)
    assert [len(move.elections) for move in moves if isinstance(move, ElectLeaders)] == [MAX_REBALANCED_AT_ONCE, 10]
    assert {record.leader for record in cluster.image.partitions.values()} == {0}
    assert world.run(60) == []


def add(cluster: Cluster, number: int) -> None:
    """Broker 0 joins the ISR of one partition."""
    record = cluster.image.partitions[TopicPartition(TP.topic_id, number)]
    isr = tuple(IsrMember(BrokerId(member), cluster.incarnation(member)) for member in (0, 1, 2))
    leader = (record.leader, record.leader_incarnation, record.leader_epoch, record.partition_epoch)
    cluster.do(AlterIsr(TP.topic_id, number, *leader, isr))


def test_a_preferred_leader_out_of_sync_is_left_alone() -> None:
    world = World(Cluster(), rebalance_after=5.0)
    world.run(1)
    world.die(0)
    world.run(2)
    world.restart(0, cut=True)
    world.run(60)
    assert world.leader == 1


@pytest.mark.parametrize("term_of_entry", [0, 1])
def test_a_deposed_controllers_proposal_is_refused(term_of_entry: int) -> None:
    world = World(Cluster())
    world.run(1)
    world.die(0)
    world.held = []
    (fence,) = world.run(2)
    world.cluster.term += term_of_entry
    world.cluster.apply(fence, term=world.cluster.term - term_of_entry)
    assert world.cluster.image.brokers[BrokerId(0)].fenced == (term_of_entry == 0)
