"""The commands with which `scale_image.py` and `scale_cluster.py` build a large cluster."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from metadata.commands.cluster import MAX_ELECTIONS_PER_COMMAND, CreateTopic, ElectLeaders, RegisterBroker
from metadata.commands.envelope import Command
from metadata.commands.fields import Election
from metadata.commands.groups import ChangeGroups, Commit, OffsetToCommit
from metadata.image import groups as group_image
from metadata.image import topics as image_topics
from metadata.image.image import ClusterImage
from metadata.rules.elections import electable
from raftlog.model import BrokerId, DirectoryId, Endpoint, Offset, TopicId

PARTITIONS_A_TOPIC = 10_000
OFFSETS_A_GROUP = 40
GROUPS_A_COMMAND = 25
HERE = Endpoint("127.0.0.1", 9641)


def lift_limits(partitions: int) -> None:
    """Lift the limits for users, so that the cost of the work ends the study."""
    image_topics.MAX_PARTITIONS = max(image_topics.MAX_PARTITIONS, partitions)
    group_image.MAX_COMMITTED_OFFSETS = max(group_image.MAX_COMMITTED_OFFSETS, 8 * partitions)


def topic_id_of(number: int) -> TopicId:
    return TopicId(hashlib.sha256(f"topic-{number}".encode()).digest()[:16])


def registrations(brokers: int) -> Iterator[RegisterBroker]:
    for number in range(brokers):
        directory = DirectoryId(number.to_bytes(16, "big"))
        yield RegisterBroker.of(
            BrokerId(number), directory, 1, api=HERE, data=HERE, rack=f"rack-{number % 3}", feature_level=1, reports=[]
        )


def topics(partitions: int, brokers: int) -> Iterator[CreateTopic]:
    """Topics with three replicas each, on alternating brokers, so that all brokers lead the same number."""
    strides = (0, 1 + brokers // 3, 1 + 2 * brokers // 3)
    for number, first in enumerate(range(0, partitions, PARTITIONS_A_TOPIC)):
        count = min(PARTITIONS_A_TOPIC, partitions - first)
        replicas = tuple(tuple(BrokerId((n + stride) % brokers) for stride in strides) for n in range(count))
        yield CreateTopic(f"topic-{number}", topic_id_of(number), replicas)


def group_commits(groups: int, partitions: int, offset: int, groups_a_command: int) -> Iterator[ChangeGroups]:
    """Let each group commit in `OFFSETS_A_GROUP` partitions, one after the other."""
    for first in range(0, groups, groups_a_command):
        some = range(first, min(first + groups_a_command, groups))
        yield ChangeGroups(tuple(commit_of(group, partitions, offset) for group in some))


def commit_of(group: int, partitions: int, offset: int) -> Commit:
    """A commit of a consumer that assigns partitions to itself, without a coordinator."""
    offsets = []
    for n in range(OFFSETS_A_GROUP):
        topic, partition = divmod((group * OFFSETS_A_GROUP + n) % partitions, PARTITIONS_A_TOPIC)
        offsets.append(OffsetToCommit(topic_id_of(topic), partition, Offset(offset)))
    return Commit(f"group-{group}", "", 0, 0, 0, tuple(offsets))


def elections(image: ClusterImage) -> Iterator[Command]:
    """Elections of a leader for every partition without one."""
    wanted = []
    for tp in list(image.leaderless):
        record = image.partitions[tp]
        candidate = electable(record, image.brokers)[0]
        incarnation = image.brokers[candidate].incarnation
        wanted.append(Election(tp.topic_id, tp.partition, candidate, incarnation, record.partition_epoch))
    for start in range(0, len(wanted), MAX_ELECTIONS_PER_COMMAND):
        yield ElectLeaders(tuple(wanted[start : start + MAX_ELECTIONS_PER_COMMAND]))
