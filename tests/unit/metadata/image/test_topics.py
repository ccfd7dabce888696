"""The effect of commands about topics on the cluster image."""

from __future__ import annotations

import pytest

from metadata.commands.cluster import AddPartitions, AlterTopic, CreateTopic, DeleteTopic, SetFeatureLevel
from metadata.commands.envelope import Command
from metadata.commands.results import Done
from metadata.image import topics as image_topics
from metadata.snapshot.encoder import encode_snapshot
from raftlog.model import BrokerId, TopicId
from raftlog.version import FEATURE_LEVEL
from tests.support.metadata.at_once import decode_snapshot
from tests.support.metadata.cluster import TOPIC, Cluster

OTHER = TopicId(b"topic-number-002")


def brokers(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(number) for number in numbers)


def test_a_topic_fixes_its_minimum() -> None:
    cluster = Cluster(5)
    assert cluster.partition.min_insync_replicas == 3
    cluster.do(CreateTopic("two", OTHER, (brokers(0, 1),), (("min.insync.replicas", "1"),)))
    topic = cluster.view.topic("two")
    assert topic is not None
    assert topic.configs == (("min.insync.replicas", "1"),)
    assert [record.min_insync_replicas for record in cluster.view.partitions_of(OTHER)] == [1]


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (CreateTopic("orders", OTHER, (brokers(0),)), "topic_exists"),
        (CreateTopic("other", TOPIC, (brokers(0),)), "invalid_request"),
        (CreateTopic("no/slash", OTHER, (brokers(0),)), "invalid_topic_name"),
        (CreateTopic("other", OTHER, ()), "invalid_request"),
        (CreateTopic("other", OTHER, ((),)), "invalid_request"),
        (CreateTopic("other", OTHER, (brokers(0, 0),)), "invalid_request"),
        (CreateTopic("other", OTHER, (brokers(0, 1), brokers(0))), "invalid_request"),
        (CreateTopic("other", OTHER, (brokers(0, 7),)), "invalid_request"),
        (CreateTopic("other", OTHER, (brokers(0),), (("retention.ms", "soon"),)), "invalid_config"),
        (CreateTopic("other", OTHER, (brokers(0),), (("min.insync.replicas", "2"),)), "invalid_config"),
        (CreateTopic("other", OTHER, (brokers(0),) * 10_001), "invalid_request"),
        (DeleteTopic(OTHER), "unknown_topic"),
        (AlterTopic(OTHER, ()), "unknown_topic"),
        (AlterTopic(TOPIC, (("retention.mss", "5"),)), "invalid_config"),
        (AlterTopic(TOPIC, (), ("retention.mss",)), "invalid_config"),
        (AlterTopic(TOPIC, (("min.insync.replicas", "4"),)), "invalid_config"),
        (AddPartitions(OTHER, 0, (brokers(0, 1, 2),)), "unknown_topic"),
        (AddPartitions(TOPIC, 0, (brokers(0, 1, 2),)), "stale_partition_epoch"),
        (AddPartitions(TOPIC, 1, (brokers(0, 1),)), "invalid_request"),
        (AddPartitions(TOPIC, 1, ()), "invalid_request"),
    ],
    ids=range(20),
)
def test_an_invalid_topic_is_refused_by_name(command: Command, code: str) -> None:
    assert Cluster().refusal(command) == code


def test_creating_a_topic_twice_with_one_id_creates_it_once() -> None:
    cluster = Cluster()
    assert cluster.do(CreateTopic("orders", TOPIC, (brokers(0, 1, 2),))) == Done()
    assert cluster.events == []


def test_a_topic_needs_enough_live_brokers() -> None:
    cluster = Cluster()
    cluster.fence(1, 2)
    assert cluster.refusal(CreateTopic("other", OTHER, (brokers(0, 1, 2),))) == "not_enough_replicas"
    cluster.unfence(2)
    cluster.do(CreateTopic("other", OTHER, (brokers(1, 2, 0),)))
    (record,) = cluster.view.partitions_of(OTHER)
    assert (record.leader, record.isr, record.commit_set) == (2, (0, 2), (0, 2))


def test_the_number_of_partitions_of_a_cluster_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_topics, "MAX_PARTITIONS", 5)
    cluster = Cluster(1, partitions=3)
    assert cluster.refusal(CreateTopic("other", OTHER, (brokers(0),) * 3)) == "invalid_request"
    cluster.do(CreateTopic("other", OTHER, (brokers(0),) * 2))
    assert cluster.refusal(AddPartitions(OTHER, 2, (brokers(0),))) == "invalid_request"
    cluster.do(DeleteTopic(TOPIC))
    cluster.do(AddPartitions(OTHER, 2, (brokers(0),)))


def test_a_deleted_topic_is_gone_and_its_name_is_free() -> None:
    cluster = Cluster()
    cluster.do(DeleteTopic(TOPIC))
    assert cluster.view.topics() == cluster.view.partitions() == []
    assert cluster.image.replicas_of(BrokerId(0)) == []
    cluster.do(CreateTopic("orders", OTHER, (brokers(0, 1, 2),)))
    topic = cluster.view.topic("orders")
    assert topic is not None
    assert topic.topic_id == OTHER
    assert cluster.view.topic_by_id(TOPIC) is None
    cluster.fence(0)


def test_of_two_topics_of_one_name_the_later_has_the_greater_index() -> None:
    """The index is that of the command in the metadata log: the same on every node, and constant when the topic
    changes."""
    cluster = Cluster(3, feature_level=FEATURE_LEVEL)
    assert created(cluster) == 0, "the cluster was at a lower feature level"
    cluster.do(SetFeatureLevel(image_topics.CREATED_INDEX_FEATURE_LEVEL))
    cluster.do(DeleteTopic(TOPIC))
    cluster.do(CreateTopic("orders", OTHER, (brokers(0, 1, 2),)))
    first = created(cluster)
    assert first == cluster.image.index
    cluster.do(AlterTopic(OTHER, (("retention.ms", "1"),)))
    cluster.do(AddPartitions(OTHER, 1, (brokers(2, 1, 0),)))
    cluster.do(CreateTopic("orders", OTHER, (brokers(0, 1, 2),)))
    assert created(cluster) == first
    restored = decode_snapshot(encode_snapshot(cluster.image))
    assert restored.topics == cluster.image.topics
    cluster.do(DeleteTopic(OTHER))
    cluster.do(CreateTopic("orders", TOPIC, (brokers(0, 1, 2),)))
    assert created(cluster) > first


def created(cluster: Cluster) -> int:
    topic = cluster.view.topic("orders")
    assert topic is not None
    return topic.created_index


def test_partitions_are_added_with_the_settings_of_the_topic() -> None:
    cluster = Cluster()
    cluster.do(AlterTopic(TOPIC, (("min.insync.replicas", "3"),)))
    cluster.do(AddPartitions(TOPIC, 1, (brokers(2, 1, 0), brokers(1, 0, 2))))
    records = cluster.view.partitions_of(TOPIC)
    assert [record.leader for record in records] == [0, 2, 1]
    assert {record.min_insync_replicas for record in records} == {3}


def test_settings_are_set_and_reset() -> None:
    cluster = Cluster()
    cluster.do(AlterTopic(TOPIC, (("retention.ms", "5"), ("flush", "os"))))
    config = cluster.view.topic_config(TOPIC)
    assert config is not None
    assert (config.retention_ms, config.flush, config.min_insync_replicas) == (5, "os", 2)
    cluster.do(AlterTopic(TOPIC, (), ("retention.ms",)))
    topic = cluster.view.topic("orders")
    assert topic is not None
    assert topic.configs == (("flush", "os"),)
    cluster.do(AlterTopic(TOPIC, (("flush", "os"),), ("retention.ms",)))
    assert cluster.events == []


def test_another_minimum_is_another_version_of_every_partition() -> None:
    cluster = Cluster(partitions=2)
    epochs = [record.partition_epoch for record in cluster.view.partitions()]
    cluster.do(AlterTopic(TOPIC, (("min.insync.replicas", "1"),)))
    assert [record.partition_epoch for record in cluster.view.partitions()] == [epoch + 1 for epoch in epochs]
    cluster.do(AlterTopic(TOPIC, (("retention.ms", "1"),)))
    assert [record.partition_epoch for record in cluster.view.partitions()] == [epoch + 1 for epoch in epochs]


def test_a_lower_minimum_affects_the_commit_set_at_once() -> None:
    """0 leads alone and may acknowledge alone from now on: 1 no longer has everything."""
    cluster = Cluster()
    cluster.fence(2, 1)
    assert cluster.partition.commit_set == (0, 1)
    cluster.do(AlterTopic(TOPIC, (("min.insync.replicas", "1"),)))
    assert cluster.partition.commit_set == (0,)
