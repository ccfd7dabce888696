"""Topic changes of an administrator, as commands to the quorum.

Every change begins with a linearizable read (S7): topics, counts and brokers are those that the quorum has decided by
then, so nothing is refused or placed by a stale view. Random values (topic ids) and placement are chosen here and
carried in the command. Whether the command is valid is decided where it is applied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from metadata.commands.cluster import (
    RESTORE_FEATURE_LEVEL,
    AddPartitions,
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    RestoreTopic,
)
from metadata.commands.envelope import Command
from metadata.rules.placement import default_replication_factor, place
from metadata.view import ClusterView
from raftlog.config import MAX_PARTITIONS_PER_TOPIC, TOPIC_CONFIG_NAMES, check_topic_name, parse_topic_config
from raftlog.errors import InvalidRequest, RetriableError
from raftlog.model import BrokerId, TopicId, TopicRecord
from raftlog.ports import Random

from .feature_levels import check_level
from .proposer import Proposer

LEADERS_WAIT_SECONDS = 2.0


class TopicAdministrator:
    """See `http_api.service.topics.TopicService`. All calls are made on the broker's loop."""

    def __init__(self, view: ClusterView, proposer: Proposer, random: Random) -> None:
        self._view = view
        self._proposer = proposer
        self._random = random

    async def create(
        self, name: str, partition_count: int, replication_factor: int | None, configs: Mapping[str, str]
    ) -> None:
        """Create a topic and wait for its leaders. Raises like `TopicService.create`."""
        await self._create(name, partition_count, replication_factor, configs, None)

    async def restore(
        self,
        name: str,
        partition_count: int,
        replication_factor: int | None,
        configs: Mapping[str, str],
        producer_ids_below: int,
    ) -> None:
        """Create a topic for a restore. Raises like `TopicService.restore`."""
        check_level(self._view.feature_level, RESTORE_FEATURE_LEVEL, "topics are restored from backups")
        await self._create(name, partition_count, replication_factor, configs, producer_ids_below)

    async def _create(
        self,
        name: str,
        partition_count: int,
        replication_factor: int | None,
        configs: Mapping[str, str],
        producer_ids_below: int | None,
    ) -> None:
        check_topic_name(name)
        parse_topic_config(configs)
        self._check_partition_count(partition_count)
        await self._proposer.catch_up()
        factor = replication_factor or default_replication_factor(self._view.brokers())
        replicas = self._place(partition_count, factor, self._random.randrange(0, 1 << 20))
        topic_id = TopicId(self._random.randbytes(16))
        settings = tuple(sorted(configs.items()))
        command = (
            CreateTopic(name, topic_id, replicas, settings)
            if producer_ids_below is None
            else RestoreTopic(name, topic_id, replicas, settings, producer_ids_below)
        )
        await self._proposer.decide(command)
        await self._wait_for_leaders(topic_id)

    async def delete(self, name: str, meant: TopicId | None = None) -> None:
        """Delete a topic. Raises like `TopicService.delete`."""
        await self._proposer.catch_up()
        topic_id = self._topic(name).topic_id
        if meant not in (None, topic_id):
            gone = f"topic {name!r} with id {meant.hex()} was deleted; the current topic of that name is another one"
            raise InvalidRequest("unknown_topic", gone)
        await self._decide_unless(DeleteTopic(topic_id), lambda: self._view.topic_by_id(topic_id) is None)

    async def alter(self, name: str, assign: Mapping[str, str], remove: Sequence[str]) -> None:
        """Change a topic's settings. Raises like `TopicService.alter`."""
        parse_topic_config(assign)
        unknown = sorted(set(remove) - set(TOPIC_CONFIG_NAMES))
        if unknown:
            raise InvalidRequest("invalid_config", f"unknown topic setting {unknown[0][:64]!r}")
        await self._proposer.catch_up()
        topic_id = self._topic(name).topic_id
        await self._proposer.decide(AlterTopic(topic_id, tuple(sorted(assign.items())), tuple(sorted(set(remove)))))

    async def add_partitions(self, name: str, partition_count: int) -> None:
        """Add partitions. Raises like `TopicService.add_partitions`."""
        self._check_partition_count(partition_count)
        await self._proposer.catch_up()
        topic = self._topic(name)
        added = partition_count - topic.partition_count
        if added <= 0:
            raise InvalidRequest(
                "invalid_request",
                f"topic {name!r} has {topic.partition_count} partitions: the new count must be greater",
            )
        replicas = self._place(added, topic.replication_factor, topic.partition_count)

        def is_grown() -> bool:
            now = self._view.topic_by_id(topic.topic_id)
            return now is not None and now.partition_count >= partition_count

        await self._decide_unless(AddPartitions(topic.topic_id, topic.partition_count, replicas), is_grown)
        await self._wait_for_leaders(topic.topic_id)

    async def _decide_unless(self, command: Command, is_done: Callable[[], bool]) -> None:
        """Propose the command. If the outcome is unknown but the view shows the result, the change is done."""
        try:
            await self._proposer.decide(command)
        except RetriableError as error:
            if error.code != "outcome_unknown" or not is_done():
                raise

    async def _wait_for_leaders(self, topic_id: TopicId) -> None:
        """Wait a while until every partition has a leader. A topic without leaders exists nevertheless."""
        led = asyncio.Event()

        def look(*_: object) -> None:
            if all(record.has_leader for record in self._view.partitions_of(topic_id)):
                led.set()

        unsubscribe = self._view.subscribe(look)
        try:
            look()
            async with asyncio.timeout(LEADERS_WAIT_SECONDS):
                await led.wait()
        except TimeoutError:
            return
        finally:
            unsubscribe()

    def _place(self, partition_count: int, replication_factor: int, start: int) -> tuple[tuple[BrokerId, ...], ...]:
        brokers = self._view.brokers()
        carried = self._view.tally.replicas
        return place(brokers, partition_count, replication_factor, start=start, replica_counts=carried)

    def _topic(self, name: str) -> TopicRecord:
        topic = self._view.topic(name)
        if topic is None:
            raise InvalidRequest("unknown_topic", f"there is no topic {name[:249]!r}")
        return topic

    @staticmethod
    def _check_partition_count(count: int) -> None:
        if not 1 <= count <= MAX_PARTITIONS_PER_TOPIC:
            raise InvalidRequest(
                "invalid_request", f"a topic must have 1 to {MAX_PARTITIONS_PER_TOPIC} partitions, not {count}"
            )
