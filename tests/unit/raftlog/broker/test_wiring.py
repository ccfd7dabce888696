"""A broker on ports: it stops with the reason if it no longer has a place in the cluster; and the content of its
health.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from jepsen_like.simulator.world.disk import SimDisk
from metadata.commands.replicas import UnregisterBroker
from metadata.commands.results import Registered
from metadata.quorum.port import Fate, Outcome
from metadata.records.events import BrokerChanged, ThrottleChanged
from metadata.snapshot.encoder import encode_snapshot
from partitions.replica.transactions import LeftOpen
from raftlog.broker.health import LINES_MAX, OLD_TRANSACTION_SECONDS, health_of, old_transactions
from raftlog.broker.identity import NodeIdentity
from raftlog.broker.wiring import Broker, _as_change
from raftlog.config import NodeConfig
from raftlog.model import (
    BrokerId,
    Endpoint,
    Offset,
    ProducerEpoch,
    ProducerId,
    QuorumStatus,
    ReplicationThrottle,
    TopicId,
    TopicPartition,
)
from raftlog.ports import Space
from raftlog.transactions import TransactionKey
from tests.interaction.story_ports import StoryLogger, StoryWorker
from tests.support.metadata.at_once import decode_snapshot, diff
from tests.support.metadata.cluster import Cluster, directory
from tests.support.partitions.manual import ManualScheduler

OWN = BrokerId(3)
HERE = Endpoint("127.0.0.1", 9640)


class OwnQuorum:
    """Answers the registration according to the cluster's image."""

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


def loaded(scheduler: ManualScheduler | None = None) -> tuple[Cluster, Broker, list[BaseException]]:
    """Broker 3, beside three others that have all replicas, before it registers."""
    cluster, fatal = Cluster(3), list[BaseException]()
    scheduler = scheduler or ManualScheduler()
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
def scheduler() -> ManualScheduler:
    """The scheduler of `registered`."""
    return ManualScheduler()


@pytest.fixture
def registered(scheduler: ManualScheduler) -> tuple[Cluster, Broker, list[BaseException]]:
    """The same, with its place in the cluster."""
    cluster, broker, fatal = loaded(scheduler)
    broker.register(OwnQuorum(cluster), HERE, HERE, lambda: None)  # type: ignore[arg-type]
    broker.on_events(cluster.image.index, cluster.events)
    return cluster, broker, fatal


def test_a_broker_with_a_half_completed_registration_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other part would notice: the node would stay half registered, lead partitions and serve nothing."""
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


def test_partitions_have_caught_up_when_the_view_has_the_quorums_index() -> None:
    """S7: this confirms a leader to readers that are beyond its end."""
    cluster, broker, _ = loaded()
    told: list[bool] = []
    broker.catch_up(told.append)
    assert told == [False], "it is not part of a quorum yet"
    quorum = OwnQuorum(cluster)
    broker.register(quorum, HERE, HERE, lambda: None)  # type: ignore[arg-type]
    broker.catch_up(told.append)
    quorum.barriers.pop()(Outcome(Fate.UNKNOWN, index=0, result=None))
    assert told == [False, False]
    broker.catch_up(told.append)
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


def test_a_process_that_learns_from_a_snapshot_that_its_broker_was_unregistered_stops_too(
    registered: tuple[Cluster, Broker, list[BaseException]],
) -> None:
    """The log entry is gone: a node that was offline for long gets a snapshot in its place."""
    cluster, broker, fatal = registered
    before = decode_snapshot(encode_snapshot(cluster.image))
    cluster.do(UnregisterBroker(OWN, broker.incarnation))
    broker.on_events(cluster.image.index, diff(before, decode_snapshot(encode_snapshot(cluster.image))))
    (error,) = fatal
    assert "was unregistered by an operator" in str(error)
    assert broker.view.broker(OWN) is None


def test_the_unregistration_of_an_earlier_incarnation_is_ignored(
    registered: tuple[Cluster, Broker, list[BaseException]],
) -> None:
    """A node that registered again reads it in the log."""
    cluster, broker, fatal = registered
    cluster.do(UnregisterBroker(OWN, broker.incarnation))
    earlier = cluster.events
    cluster.start(OWN)
    assert fatal == []
    broker.incarnation = cluster.incarnation(OWN)
    broker.on_events(cluster.image.index, [*earlier, *cluster.events])
    assert fatal == [] and broker.view.broker(OWN) is not None


def test_a_voter_that_forgot_is_a_problem_with_a_remedy(
    registered: tuple[Cluster, Broker, list[BaseException]],
) -> None:
    """S9, S10: a quorum that survives fewer failures than it seems to is not healthy."""
    _, broker, _ = registered
    well = QuorumStatus(OWN, OWN, 4, 9, 9, 9, (BrokerId(1), BrokerId(2), OWN))
    before = health_of(broker, well).problems
    (problem,) = set(health_of(broker, replace(well, forgetful=(BrokerId(2),))).problems) - set(before)
    assert problem.startswith("node 2 forgot entries") and "raftlog quorum remove 2; --plan" in problem
    assert "raftlog quorum add 2" in problem


def test_replicas_get_the_rates_of_moves() -> None:
    throttle = ReplicationThrottle(leader_rate=5)
    assert _as_change(ThrottleChanged(throttle)) == [throttle]


def test_a_broker_low_on_space_is_named_with_the_remedy(
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


def test_a_transaction_that_is_open_for_long_is_a_problem_with_a_remedy(
    registered: tuple[Cluster, Broker, list[BaseException]],
) -> None:
    """S10: readers of committed records stand still, and the status says at what."""
    _, broker, _ = registered
    tp, now = TopicPartition(TopicId(b"t" * 16), 3), 1_000.0
    young, old, taken_over = (
        LeftOpen(TransactionKey(ProducerId(producer), ProducerEpoch(2)), tp, Offset(7), None, since)
        for producer, since in ((11, now - 1), (12, now - OLD_TRANSACTION_SECONDS), (13, None))
    )
    (problem,) = old_transactions([young, old, taken_over], now, broker.view)
    assert "/3 has an open transaction of producer 12, epoch 2, for 300 s" in problem and "offset 7" in problem
    assert "raftlog transaction abort --producer-id 12" in problem
    assert len(old_transactions([old] * 1_000, now, broker.view)) == LINES_MAX + 1
