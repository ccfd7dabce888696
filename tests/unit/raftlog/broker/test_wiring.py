"""A broker on ports: told that it has no place in the cluster any more it stops and says why; what health tells."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from jepsen_like.simulator.world.disk import SimDisk
from metadata.commands.replicas import UnregisterBroker
from metadata.commands.results import Registered
from metadata.image.diff import diff
from metadata.quorum.port import Fate, Outcome
from metadata.records.events import BrokerChanged, ThrottleChanged
from metadata.snapshot.encoder import decode_snapshot, encode_snapshot
from raftlog.broker.health import health_of
from raftlog.broker.identity import NodeIdentity
from raftlog.broker.wiring import Broker, _as_change
from raftlog.config import NodeConfig
from raftlog.model import BrokerId, Endpoint, QuorumStatus, ReplicationThrottle
from raftlog.ports import Space
from tests.interaction.story_ports import StoryLogger, StoryWorker
from tests.support.manual import ManualScheduler
from tests.support.metadata_cluster import Cluster, directory

OWN = BrokerId(3)
HERE = Endpoint("127.0.0.1", 9640)


class OwnQuorum:
    """Answers the registration with what the cluster's image says."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.barriers: list[Any] = []

    def register(self, command: Any, done: Any) -> None:
        result = self._cluster.do(command)
        assert isinstance(result, Registered)
        done(Outcome(Fate.APPLIED, index=self._cluster.image.index, result=result))

    def read_barrier(self, done: Any, *, timeout: float) -> None:
        assert 0 < timeout <= 5
        self.barriers.append(done)


class NoDialer:
    def connect(self, peer: BrokerId) -> None: ...
    def disconnect(self, peer: BrokerId) -> None: ...


def loaded() -> tuple[Cluster, Broker, list[BaseException]]:
    """Broker 3, beside three others that carry everything, before it registers."""
    cluster, fatal = Cluster(3), list[BaseException]()
    scheduler = ManualScheduler()
    worker = StoryWorker(scheduler)
    broker = Broker(
        NodeIdentity("cluster", OWN, directory(OWN), {}, 1, True),
        NodeConfig(),
        disk=SimDisk(),
        clock=scheduler.clock,
        scheduler=scheduler,
        worker=worker,
        log_worker=worker,
        random=random.Random(0),
        dialer=NoDialer(),
        logger=StoryLogger(lambda line: None, OWN),
        on_fatal=fatal.append,
    )
    broker.load()
    return cluster, broker, fatal


@pytest.fixture
def registered() -> tuple[Cluster, Broker, list[BaseException]]:
    """The same, with its place in the cluster."""
    cluster, broker, fatal = loaded()
    broker.register(OwnQuorum(cluster), HERE, HERE, lambda: None)  # type: ignore[arg-type]
    broker.on_events(cluster.image.index, cluster.events)
    return cluster, broker, fatal


def test_a_broker_that_takes_its_place_by_half_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else hears of it: the node would stay half registered, lead what it was given and serve nothing."""
    cluster, broker, fatal = loaded()

    def begin(incarnation: int) -> Iterator[None]:
        yield
        raise MemoryError

    monkeypatch.setattr(broker.manager, "begin_in_steps", begin)
    with pytest.raises(MemoryError):
        broker.register(OwnQuorum(cluster), HERE, HERE, lambda: None)  # type: ignore[arg-type]
    assert [type(error) for error in fatal] == [MemoryError]


def follow(cluster: Cluster, broker: Broker) -> None:
    broker.on_events(cluster.image.index, cluster.events)


def test_partitions_have_caught_up_when_the_view_is_where_the_quorum_says() -> None:
    """S7: what confirms a leader to readers who are beyond its end."""
    cluster, broker, _ = loaded()
    told: list[bool] = []
    broker._catch_up(told.append)
    assert told == [False], "it is not part of a quorum yet"
    quorum = OwnQuorum(cluster)
    broker.register(quorum, HERE, HERE, lambda: None)  # type: ignore[arg-type]
    broker._catch_up(told.append)
    quorum.barriers.pop()(Outcome(Fate.UNKNOWN, index=0, result=None))
    assert told == [False, False]
    broker._catch_up(told.append)
    quorum.barriers.pop()(Outcome(Fate.APPLIED, index=cluster.image.index, result=None))
    assert told == [False, False], "its view is behind"
    follow(cluster, broker)
    assert told == [False, False, True]


def test_a_process_whose_broker_was_unregistered_stops(registered: tuple[Cluster, Broker, list[BaseException]]) -> None:
    cluster, broker, fatal = registered
    cluster.do(UnregisterBroker(OWN, broker.incarnation))
    follow(cluster, broker)
    (error,) = fatal
    assert "was unregistered by an operator" in str(error)
    assert broker.view.broker(OWN) is None


def test_a_process_that_reads_in_a_snapshot_that_its_broker_was_unregistered_stops_too(
    registered: tuple[Cluster, Broker, list[BaseException]],
) -> None:
    """The log entry is gone: a node that was away for long gets a snapshot in its place."""
    cluster, broker, fatal = registered
    before = decode_snapshot(encode_snapshot(cluster.image))
    cluster.do(UnregisterBroker(OWN, broker.incarnation))
    broker.on_events(cluster.image.index, diff(before, decode_snapshot(encode_snapshot(cluster.image))))
    (error,) = fatal
    assert "was unregistered by an operator" in str(error)
    assert broker.view.broker(OWN) is None


def test_that_an_earlier_life_was_unregistered_is_of_the_past(
    registered: tuple[Cluster, Broker, list[BaseException]],
) -> None:
    """As a node that registered anew reads it in the log."""
    cluster, broker, fatal = registered
    cluster.do(UnregisterBroker(OWN, broker.incarnation))
    earlier = cluster.events
    cluster.start(OWN)
    assert fatal == []
    broker.incarnation = cluster.incarnation(OWN)
    broker.on_events(cluster.image.index, [*earlier, *cluster.events])
    assert fatal == [] and broker.view.broker(OWN) is not None


def test_a_voter_that_forgot_is_a_problem_that_says_what_to_do(
    registered: tuple[Cluster, Broker, list[BaseException]],
) -> None:
    """S9, S10: a quorum that survives fewer failures than it seems to is not healthy."""
    _, broker, _ = registered
    well = QuorumStatus(OWN, OWN, 4, 9, 9, 9, (BrokerId(1), BrokerId(2), OWN))
    before = health_of(broker, well).problems
    (problem,) = set(health_of(broker, replace(well, forgetful=(BrokerId(2),))).problems) - set(before)
    assert problem.startswith("node 2 forgot entries") and "raftlog quorum remove 2; --plan" in problem
    assert "raftlog quorum add 2" in problem


def test_replicas_hear_how_fast_moves_may_copy() -> None:
    throttle = ReplicationThrottle(leader_rate=5)
    assert _as_change(ThrottleChanged(throttle)) == [throttle]


def test_a_broker_short_of_room_is_named_with_what_helps(
    registered: tuple[Cluster, Broker, list[BaseException]],
) -> None:
    _, broker, _ = registered
    well = QuorumStatus(OWN, OWN, 4, 9, 9, 9, (BrokerId(1), BrokerId(2), OWN))
    before = health_of(broker, well).problems
    (other, *_) = broker.view.brokers()
    broker.view.on_events(broker.view.index, [BrokerChanged(replace(other, short_of_room=True))])
    broker.room.looked(Space(0, 100_000))
    told, own = [line for line in health_of(broker, well).problems if line not in before]
    assert told.startswith(f"node {other.broker_id} is short of room") and "retention.ms" in told and "drain" in told
    assert own.startswith(f"node {OWN}: 0 bytes are free") and "disk_reserved_bytes" in own
