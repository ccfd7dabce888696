"""A broker that stops while it leads many partitions: bounded passes, and none is forgotten."""

from __future__ import annotations

import pytest

from metadata.commands.cluster import CreateTopic, ElectLeaders, FenceBroker
from metadata.commands.envelope import Command
from raftlog.model import BrokerId, TopicId
from tests.support.metadata.cluster import TOPIC, Cluster
from tests.support.metadata.world import TICK, World


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Broker 0 leads nine partitions; the controller processes two at a time."""
    monkeypatch.setattr("metadata.controller.controller.MAX_PARTITIONS_PER_DECISION", 2)
    cluster = Cluster(0)
    for broker in range(3):
        cluster.restart(broker)
    cluster.do(CreateTopic("orders", TOPIC, (tuple(map(BrokerId, (0, 1, 2))),) * 9))
    world = World(cluster)
    world.run(1)
    return world


def leaders(world: World) -> set[int]:
    return {int(record.leader) for record in world.cluster.image.partitions.values()}


def stop(world: World, seconds: float) -> list[Command]:
    """Broker 0 reports that it stops, for a duration; returns the decisions."""
    world.up.discard(0)
    decided: list[Command] = []
    for _ in range(round(seconds / TICK)):
        world.beat(0, stopping=True)
        decided += world.run(TICK)
    return decided


def test_many_leaderships_are_handed_over_a_few_at_a_time_before_the_fence(world: World) -> None:
    decided = stop(world, 0.4)
    assert [type(command) for command in decided[:-1]] == [ElectLeaders] * (len(decided) - 1)
    assert all(len(command.elections) <= 2 for command in decided if isinstance(command, ElectLeaders))
    assert decided[-1] == FenceBroker(BrokerId(0), world.cluster.incarnation(0))
    assert leaders(world) == {1} and not world.cluster.image.leaderless


def test_a_lost_election_is_proposed_again(world: World) -> None:
    world.held = []
    stop(world, 0.1)
    lost, world.held = world.held, None
    for command in lost:
        world.controller.settled(command)
    decided = stop(world, 0.3)
    assert isinstance(decided[-1], FenceBroker)
    assert leaders(world) == {1}


def test_it_is_fenced_at_its_deadline_whatever_is_in_flight(world: World) -> None:
    world.held = []
    stop(world, 0.45)
    assert not any(isinstance(command, FenceBroker) for command in world.held)
    stop(world, 0.1)
    assert any(isinstance(command, FenceBroker) for command in world.held)


def test_leaderships_without_another_candidate_do_not_hide_those_with_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first ones that it checks have one replica; the controller continues."""
    monkeypatch.setattr("metadata.controller.controller.MAX_PARTITIONS_PER_DECISION", 2)
    cluster = Cluster(0)
    for broker in range(3):
        cluster.restart(broker)
    alone, shared = (BrokerId(0),), tuple(map(BrokerId, (0, 1, 2)))
    cluster.do(CreateTopic("alone", TopicId(b"a" * 16), (alone,) * 9))
    cluster.do(CreateTopic("orders", TOPIC, (shared,) * 3))
    world = World(cluster)
    world.run(1)
    decided = stop(world, 0.4)
    handed_over = sum(len(command.elections) for command in decided if isinstance(command, ElectLeaders))
    assert handed_over == 3
    assert isinstance(decided[-1], FenceBroker), "before its time is over: the rest has nowhere to go"
    assert {int(record.leader) for record in cluster.image.partitions.values() if len(record.replicas) > 1} == {1}


def test_a_broker_without_transferable_leaderships_is_fenced_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metadata.controller.controller.MAX_PARTITIONS_PER_DECISION", 2)
    cluster = Cluster(0)
    for broker in range(3):
        cluster.restart(broker)
    cluster.do(CreateTopic("alone", TopicId(b"a" * 16), ((BrokerId(0),),) * 9))
    world = World(cluster)
    world.run(1)
    assert stop(world, 0.3) == [FenceBroker(BrokerId(0), cluster.incarnation(0))]
