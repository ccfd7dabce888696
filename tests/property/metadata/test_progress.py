"""Once faults heal, every partition has a leader within a bounded time, without an operator (S10)."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from metadata.commands.cluster import AlterTopic, SetFeatureLevel
from raftlog.version import FEATURE_LEVEL
from tests.support.metadata.cluster import TOPIC, TP, Cluster
from tests.support.metadata.world import World

PATIENCE = 3.0
BOUND_SECONDS = 3.0 + 2 * 0.9 + PATIENCE


@settings(max_examples=60, deadline=None)
@example(11, (3, 2))
@given(st.integers(0, 2**32 - 1), st.sampled_from([(3, 2), (3, 1), (5, 3), (1, 1), (2, 2)]))
def test_after_the_heal_every_partition_has_a_leader(seed: int, shape: tuple[int, int]) -> None:
    """Crashes, restarts with truncated logs, new controllers, another minimum; then all brokers are back with their
    directories."""
    random = Random(seed)
    replicas, minimum = shape
    cluster = Cluster(replicas, min_insync_replicas=minimum, feature_level=FEATURE_LEVEL)
    cluster.do(SetFeatureLevel(FEATURE_LEVEL))
    world = World(cluster, recovery_patience=PATIENCE)
    for _ in range(random.randint(1, 15)):
        broker = random.randrange(replicas)
        match random.choice(("die", "die", "all die", "restart", "restart", "isr", "controller", "minimum")):
            case "die":
                world.die(broker)
            case "all die":
                world.die(*range(replicas))
            case "restart":
                world.restart(broker, end=random.randrange(9), cut=random.random() < 0.6)
            case "isr":
                world.rejoin()
            case "controller":
                world.new_controller()
            case "minimum":
                asked = str(random.randint(1, replicas))
                cluster.do(AlterTopic(TOPIC, (("min.insync.replicas", asked),)))
        world.run(random.choice((0.05, 0.3, 1.5)))
    for broker in range(replicas):
        if broker not in world.up:
            world.restart(broker, end=random.randrange(9), cut=random.random() < 0.6)
    world.run(BOUND_SECONDS)
    assert world.cluster.partition.has_leader, world.cluster.view.explain_offline(TP)


@pytest.mark.parametrize("returning", [0, 1, 2])
def test_one_eligible_member_is_enough(returning: int) -> None:
    """All brokers fail at once: the member of ISR or commit set that comes back leads."""
    world = World(Cluster(3))
    world.run(1)
    world.die(0, 1, 2)
    world.run(3)
    assert world.cluster.partition.commit_set == (0, 1, 2)
    world.restart(returning, end=4)
    world.run(1)
    assert world.leader == returning
