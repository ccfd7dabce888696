"""Topics: created, grown, set and deleted.

The proposer chose the id and the replicas; here they are checked. A new partition starts with its live replicas in
sync and the first of them as leader: an empty log is the same everywhere. There must be enough of them to take a write
with `acks=all`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace

from metadata.commands.cluster import (
    MAX_RESTORED_PRODUCER_ID,
    RESTORE_FEATURE_LEVEL,
    AddPartitions,
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    RestoreTopic,
)
from metadata.commands.results import Done, Refused
from metadata.rules.elections import is_live
from metadata.rules.topic_config import settled_config
from raftlog.config import (
    MAX_PARTITIONS_PER_TOPIC,
    RESTORING,
    TOPIC_CONFIG_NAMES,
    check_topic_name,
    majority,
    parse_topic_config,
)
from raftlog.errors import InvalidRequest
from raftlog.model import (
    BrokerId,
    LeaderEpoch,
    PartitionEpoch,
    PartitionRecord,
    ProducerId,
    TopicId,
    TopicPartition,
    TopicRecord,
)

from .image import PARTITIONS_PER_STEP, ClusterImage, Steps

MAX_TOPICS = 10_000
MAX_PARTITIONS = 100_000
"""The most partitions of the cluster: every node keeps all records in memory and in every snapshot."""
MAX_REPLICATION_FACTOR = 32
CREATED_INDEX_FEATURE_LEVEL = 5
"""The level from which a topic keeps the index of its creation, on every node alike."""


def create_topic(state: ClusterImage, command: CreateTopic, index: int) -> Steps:
    """Create a topic. Refused if the name or the id is taken; the same name with the same id is a retry.

    `index`: the command's index in the metadata log. Ids do not show which of two topics of one name came later; this
    does.
    """
    existing = state.topic_ids.get(command.name)
    if existing is not None:
        if existing == command.topic_id:
            return Done()
        return Refused("topic_exists", f"there is a topic {command.name!r} already")
    if command.topic_id in state.topics:
        return Refused("invalid_request", "the topic id is taken")
    if len(state.topics) >= MAX_TOPICS:
        return Refused("invalid_request", f"the cluster has {MAX_TOPICS} topics, which is the most")
    factor = len(command.replicas[0]) if command.replicas else 0
    refused = _not_restorable(state, command) or _no_placement(state, command.replicas, factor, existing_partitions=0)
    if refused is not None:
        return refused
    yield
    try:
        check_topic_name(command.name)
        minimum = settled_config(dict(command.configs), factor).min_insync_replicas
    except InvalidRequest as error:
        return Refused(error.code, error.detail)
    refused = _too_few_live(state, command.replicas, minimum)
    if refused is not None:
        return refused
    configs = dict(command.configs)
    if isinstance(command, RestoreTopic):
        configs[RESTORING] = str(command.producer_ids_below)
        if command.producer_ids_below > state.next_producer_id:
            state.next_producer_id = ProducerId(command.producer_ids_below)
    created = index if state.feature_level >= CREATED_INDEX_FEATURE_LEVEL else 0
    state.put_topic(
        TopicRecord(command.topic_id, command.name, len(command.replicas), factor, _sorted(configs), created)
    )
    yield from _put_new_partitions(state, command.topic_id, 0, command.replicas, minimum)
    return Done()


def add_partitions(state: ClusterImage, command: AddPartitions) -> Steps:
    """Add partitions with the topic's replication factor and settings."""
    topic = state.topics.get(command.topic_id)
    if topic is None:
        return _unknown(command.topic_id)
    if command.first_partition != topic.partition_count:
        return Refused("stale_partition_epoch", f"topic {topic.name!r} has {topic.partition_count} partitions now")
    factor = topic.replication_factor
    minimum = settled_config(dict(topic.configs), factor).min_insync_replicas
    refused = _no_placement(
        state, command.replicas, factor, existing_partitions=topic.partition_count
    ) or _too_few_live(state, command.replicas, minimum)
    if refused is not None:
        return refused
    state.put_topic(replace(topic, partition_count=topic.partition_count + len(command.replicas)))
    yield from _put_new_partitions(state, command.topic_id, topic.partition_count, command.replicas, minimum)
    return Done()


def delete_topic(state: ClusterImage, command: DeleteTopic) -> Steps:
    """Delete a topic. Its name is free at once; its id is never used again."""
    topic = state.topics.get(command.topic_id)
    if topic is None:
        return _unknown(command.topic_id)
    for records in state.slices_of_topic(topic):
        for record in records:
            state.remove_partition(record)
        yield
    state.remove_topic(topic)
    return Done()


def alter_topic(state: ClusterImage, command: AlterTopic) -> Steps:
    """Alter a topic: all settings or none. A new `min.insync.replicas` is a new version of every partition."""
    topic = state.topics.get(command.topic_id)
    if topic is None:
        return _unknown(command.topic_id)
    configs = dict(topic.configs)
    refused = _starts_restoring(state, configs, command)
    if refused is not None:
        return refused
    for name in command.remove:
        if name not in TOPIC_CONFIG_NAMES:
            return Refused("invalid_config", f"unknown topic setting {name[:64]!r}")
        configs.pop(name, None)
    configs.update(command.assign)
    try:
        settled_config(configs, topic.replication_factor)
        asked_minimum = parse_topic_config(configs).min_insync_replicas
    except InvalidRequest as error:
        return Refused(error.code, error.detail)
    altered = replace(topic, configs=_sorted(configs))
    if altered == topic:
        return Done()
    for records in state.slices_of_topic(altered):
        for record in records:
            fewest = min(record.replica_count, len(record.target_replicas) or record.replica_count)
            if asked_minimum > fewest:
                return Refused(
                    "invalid_config",
                    f"min.insync.replicas {asked_minimum} is more than the {fewest} replicas that "
                    f"{record.topic_partition} has or is to have",
                )
        yield
    state.put_topic(altered)
    for records in state.slices_of_topic(altered):
        for record in records:
            minimum = asked_minimum or majority(record.replica_count)
            if record.min_insync_replicas != minimum:
                state.revise(record, min_insync_replicas=minimum)
        yield
    return Done()


def _sorted(configs: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(configs.items()))


def _not_restorable(state: ClusterImage, command: CreateTopic) -> Refused | None:
    """Return why a topic may not be restored like this; None if it may, or is created empty."""
    if RESTORING in dict(command.configs):
        return Refused("invalid_config", f"{RESTORING} is set by a restore alone")
    if not isinstance(command, RestoreTopic):
        return None
    level, below, granted = state.feature_level, command.producer_ids_below, state.next_producer_id
    if level < RESTORE_FEATURE_LEVEL:
        return Refused("unsupported_version", f"the feature level is {level}, not {RESTORE_FEATURE_LEVEL}")
    if below > MAX_RESTORED_PRODUCER_ID:
        return Refused("invalid_request", f"producer ids up to {below} cannot be restored")
    # A topic that is being restored with as many ids shows that none of these was granted before it.
    reserved = max((int(dict(topic.configs).get(RESTORING, 0)) for topic in state.topics.values()), default=0)
    if granted and below > reserved:
        return Refused(
            "invalid_request",
            f"the backup has batches of idempotent producers, and this cluster has granted the producer ids below "
            f"{granted}, perhaps the same: restore into a new cluster, before any producer uses it",
        )
    return None


def _starts_restoring(state: ClusterImage, configs: dict[str, str], command: AlterTopic) -> Refused | None:
    """Refuse to make an existing topic one that is being restored: its log has producers' records."""
    if RESTORING not in (*dict(command.assign), *command.remove):
        return None
    if state.feature_level < RESTORE_FEATURE_LEVEL:
        return Refused("invalid_config", f"unknown topic setting {RESTORING!r}")
    if dict(command.assign).get(RESTORING, configs.get(RESTORING)) != configs.get(RESTORING):
        return Refused("invalid_config", f"{RESTORING} can only be removed: a backup is restored to a new topic")
    return None


def _unknown(topic_id: TopicId) -> Refused:
    return Refused("unknown_topic", f"there is no topic with the id {topic_id.hex()}")


def _no_placement(
    state: ClusterImage, replicas: Sequence[tuple[BrokerId, ...]], factor: int, *, existing_partitions: int
) -> Refused | None:
    """Return why partitions cannot be laid out like this, or None."""
    if not replicas or existing_partitions + len(replicas) > MAX_PARTITIONS_PER_TOPIC:
        return Refused("invalid_request", f"a topic has 1 to {MAX_PARTITIONS_PER_TOPIC} partitions, and grows by some")
    if len(state.partitions) + len(replicas) > MAX_PARTITIONS:
        return Refused("invalid_request", f"the cluster has room for {MAX_PARTITIONS} partitions in all")
    if not 1 <= factor <= MAX_REPLICATION_FACTOR:
        return Refused("invalid_request", f"a partition has 1 to {MAX_REPLICATION_FACTOR} replicas")
    for assigned in replicas:
        if len(assigned) != factor or len(set(assigned)) != factor:
            return Refused("invalid_request", f"each partition must have {factor} replicas on different brokers")
        strangers = [broker_id for broker_id in assigned if broker_id not in state.brokers]
        if strangers:
            return Refused("invalid_request", f"broker {strangers[0]} is not registered")
    return None


def _too_few_live(state: ClusterImage, replicas: Sequence[tuple[BrokerId, ...]], minimum: int) -> Refused | None:
    """Refuse a partition that could take no write with `acks=all`."""
    here = {broker_id for broker_id in state.brokers if is_live(state.brokers, broker_id)}
    for assigned in replicas:
        live = len(here.intersection(assigned))
        if live < minimum:
            return Refused(
                "not_enough_replicas", f"{live} of the brokers {assigned} are live, min.insync.replicas is {minimum}"
            )
    return None


def _live(state: ClusterImage, brokers: Iterable[BrokerId]) -> tuple[BrokerId, ...]:
    return tuple(broker_id for broker_id in brokers if is_live(state.brokers, broker_id))


def _put_new_partitions(
    state: ClusterImage, topic_id: TopicId, first: int, replicas: Sequence[tuple[BrokerId, ...]], minimum: int
) -> Generator[None, None, None]:
    for number, assigned in enumerate(replicas, first):
        if number % PARTITIONS_PER_STEP == 0:
            yield
        live = _live(state, assigned)
        in_sync = tuple(sorted(live))
        state.put_partition(
            PartitionRecord(
                topic_partition=TopicPartition(topic_id, number),
                replicas=assigned,
                leader=live[0],
                leader_incarnation=state.brokers[live[0]].incarnation,
                leader_epoch=LeaderEpoch(0),
                partition_epoch=PartitionEpoch(0),
                isr=in_sync,
                commit_set=in_sync,
                min_insync_replicas=minimum,
            )
        )
