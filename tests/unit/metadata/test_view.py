"""The read-only view: lookups, order, listeners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from metadata.commands.cluster import CreateTopic, DeleteTopic
from metadata.view import BrokerChanged, ClusterView, MetadataEvent, PartitionChanged, TopicChanged
from raftlog.broker.health import restoring_topics
from raftlog.model import NO_BROKER, BrokerId, TopicId, TopicPartition
from tests.support.metadata.cluster import TOPIC, TP, Cluster

OTHER = TopicId(b"topic-number-000")


def test_an_empty_view_knows_nothing() -> None:
    view = ClusterView()
    assert (view.index, view.feature_level, view.controller) == (0, 1, NO_BROKER)
    assert view.topics() == view.brokers() == view.partitions() == view.partitions_of(TOPIC) == []
    assert view.topic("x") is view.topic_by_id(TOPIC) is view.topic_config(TOPIC) is view.partition(TP) is None
    assert view.broker(BrokerId(0)) is None
    assert not view.alive(BrokerId(0))


def test_records_are_found_and_in_order() -> None:
    cluster = Cluster(partitions=12)
    cluster.do(CreateTopic("abc", OTHER, ((BrokerId(1),),)))
    view = cluster.view
    assert view.index == cluster.image.index
    assert [topic.name for topic in view.topics()] == ["abc", "orders"]
    assert [broker.broker_id for broker in view.brokers()] == [0, 1, 2]
    assert [record.topic_partition.partition for record in view.partitions_of(TOPIC)] == list(range(12))
    assert [record.topic_partition.topic_id for record in view.partitions()] == [OTHER] + [TOPIC] * 12
    assert view.partition(TopicPartition(OTHER, 0)) == view.partitions_of(OTHER)[0]
    assert view.topic_by_id(OTHER) == view.topic("abc")


def test_listeners_are_called_after_the_view_shows_the_change() -> None:
    cluster = Cluster()
    told: list[tuple[str, int, bool, list[MetadataEvent]]] = []

    def listener(name: str) -> None:
        def listen(index: int, events: Sequence[MetadataEvent]) -> None:
            told.append((name, index, cluster.view.alive(BrokerId(1)), list(events)))

        stops[name] = cluster.view.subscribe(listen)

    stops = {}
    listener("a")
    listener("b")
    cluster.fence(1)
    assert [(name, index, alive) for name, index, alive, _ in told] == [
        ("a", cluster.view.index, False),
        ("b", cluster.view.index, False),
    ]
    assert [type(event) for event in told[0][3]] == [BrokerChanged, PartitionChanged]
    stops["a"]()
    stops["a"]()
    cluster.unfence(1)
    assert [name for name, *_ in told] == ["a", "b", "b"]


def test_a_listener_may_unsubscribe_during_its_call() -> None:
    view = ClusterView()
    told = []

    def once(index: int, events: Sequence[MetadataEvent]) -> None:
        told.append(index)
        stop()

    stop = view.subscribe(once)
    view.on_events(1, [])
    view.on_events(2, [])
    assert told == [1]


def test_a_view_never_moves_back() -> None:
    view = ClusterView()
    view.on_events(5, [])
    with pytest.raises(AssertionError):
        view.on_events(4, [])


def test_topics_that_are_being_restored() -> None:
    cluster = Cluster(partitions=1)
    topic = cluster.view.topic_by_id(TOPIC)
    assert topic is not None and cluster.view.restoring() == []
    unfinished = replace(topic, topic_id=OTHER, name="aaa", configs=(("restoring", "7"),))
    cluster.view.on_events(50, [TopicChanged(unfinished)])
    assert cluster.view.restoring() == [unfinished]
    assert [line.split(" is")[0] for line in restoring_topics(cluster.view)] == ["topic aaa"]
    assert "raftlog topic delete aaa" in restoring_topics(cluster.view)[0]
    cluster.view.on_events(51, [TopicChanged(topic)])
    assert cluster.view.restoring() == [unfinished]
    cluster.view.on_events(52, [TopicChanged(replace(unfinished, configs=()))])
    assert cluster.view.restoring() == [] == restoring_topics(cluster.view)


def test_a_reused_name_keeps_its_new_topic() -> None:
    """A snapshot may deliver the new topic's events without an index in between."""
    cluster = Cluster()
    view = cluster.view
    cluster.do(DeleteTopic(TOPIC))
    cluster.do(CreateTopic("orders", OTHER, ((BrokerId(1),),)))
    topic = view.topic("orders")
    assert topic is not None
    assert topic.topic_id == OTHER
    assert view.partition(TP) is None
    assert view.topic_config(TOPIC) is None
