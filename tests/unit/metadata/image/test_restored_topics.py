"""Topics that are created for a restore: what they reserve, and how they become ordinary ones (S1)."""

from __future__ import annotations

import pytest

from metadata.commands.cluster import (
    MAX_RESTORED_PRODUCER_ID,
    RESTORE_FEATURE_LEVEL,
    AlterTopic,
    CreateTopic,
    GrantProducerIds,
    RestoreTopic,
    SetFeatureLevel,
)
from metadata.commands.envelope import Command
from metadata.commands.results import ProducerIdsGranted, Refused
from raftlog.model import BrokerId, TopicId
from raftlog.version import FEATURE_LEVEL
from tests.support.metadata.cluster import TOPIC, Cluster

RESTORED, OTHER = TopicId(b"topic-number-002"), TopicId(b"topic-number-003")
PLACED = ((BrokerId(0), BrokerId(1), BrokerId(2)),)


def restore(name: str = "restored", topic_id: TopicId = RESTORED, *, below: int = 500) -> RestoreTopic:
    return RestoreTopic(name, topic_id, PLACED, (("retention.ms", "1000"),), below)


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster(3, feature_level=FEATURE_LEVEL)
    made.do(SetFeatureLevel(FEATURE_LEVEL))
    return made


def grant(cluster: Cluster) -> int:
    granted = cluster.do(GrantProducerIds(BrokerId(0), cluster.incarnation(0), 10))
    assert isinstance(granted, ProducerIdsGranted)
    return granted.first


def code_of(cluster: Cluster, command: Command) -> str:
    result = cluster.apply(command)
    return result.code if isinstance(result, Refused) else ""


def setting(cluster: Cluster, topic_id: TopicId = RESTORED) -> int:
    config = cluster.view.topic_config(topic_id)
    assert config is not None
    return config.restoring


def test_the_ids_of_a_backup_are_never_granted_again(cluster: Cluster) -> None:
    cluster.do(restore())
    assert setting(cluster) == 500
    assert cluster.view.topic_config(TOPIC) is not None and setting(cluster, TOPIC) == -1
    assert grant(cluster) == 500


def test_a_second_topic_of_the_same_backup_is_restored_while_the_first_one_is(cluster: Cluster) -> None:
    cluster.do(restore())
    grant(cluster)
    cluster.do(restore("other", OTHER, below=400))
    assert grant(cluster) == 510, "nothing falls"
    assert code_of(cluster, restore("third", TopicId(b"topic-number-004"), below=501)) == "invalid_request"
    cluster.do(AlterTopic(RESTORED, (), ("restoring",)))
    assert code_of(cluster, restore("third", TopicId(b"topic-number-004"), below=450)) == "invalid_request"


def test_a_cluster_that_has_granted_ids_takes_only_topics_without(cluster: Cluster) -> None:
    grant(cluster)
    assert code_of(cluster, restore()) == "invalid_request"
    assert code_of(cluster, restore(below=5)) == "invalid_request"
    cluster.do(restore(below=0))
    assert setting(cluster) == 0
    assert code_of(cluster, restore("other", OTHER, below=1)) == "invalid_request", "the other one reserves nothing"


@pytest.mark.parametrize("below", [MAX_RESTORED_PRODUCER_ID + 1, 2**62])
def test_a_hostile_backup_does_not_use_up_the_ids(cluster: Cluster, below: int) -> None:
    assert code_of(cluster, restore(below=below)) == "invalid_request"
    assert grant(cluster) == 0


def test_the_setting_can_only_be_removed(cluster: Cluster) -> None:
    for assigned in ("0", "7", "-1"):
        assert code_of(cluster, AlterTopic(TOPIC, (("restoring", assigned),))) == "invalid_config"
    assert code_of(cluster, CreateTopic("x", OTHER, PLACED, (("restoring", "-1"),))) == "invalid_config"
    cluster.do(restore())
    assert code_of(cluster, AlterTopic(RESTORED, (("restoring", "501"),))) == "invalid_config"
    cluster.do(AlterTopic(RESTORED, (("retention.ms", "5"),)))
    assert setting(cluster) == 500
    cluster.do(AlterTopic(RESTORED, (), ("restoring",)))
    cluster.do(AlterTopic(RESTORED, (), ("restoring",)))
    assert setting(cluster) == -1
    assert code_of(cluster, AlterTopic(RESTORED, (("restoring", "500"),))) == "invalid_config"


def test_a_lower_feature_level_knows_neither_command_nor_setting() -> None:
    """A node of an earlier version refuses both as well, so all nodes do the same."""
    cluster = Cluster(3, feature_level=RESTORE_FEATURE_LEVEL)
    cluster.do(SetFeatureLevel(RESTORE_FEATURE_LEVEL - 1))
    assert code_of(cluster, restore()) == "unsupported_version"
    assert code_of(cluster, AlterTopic(TOPIC, (), ("restoring",))) == "invalid_config"
    assert code_of(cluster, AlterTopic(TOPIC, (("restoring", "-1"),))) == "invalid_config"
