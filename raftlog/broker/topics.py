"""Topic changes as commands: what an administrator asks for → what the quorum is asked to decide.

Every change begins with a linearizable read (S7): topics, counts and brokers are those that the quorum has decided by
then, so nothing is refused, or laid out, by the view of a node that is behind. Randomness (topic ids) and placement are
chosen here and carried in the command; whether it is right is decided where it is applied.

A change is proposed once. While its fate is open the quorum repeats it under one sequence of this node's session, so
that it is carried out once and an answer that got lost is given again; to propose it anew could let it take effect a
second time, after a change that came later. Only what certainly reached no log is proposed again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from metadata.command_envelope import Command
from metadata.command_results import CommandResult, Refused
from metadata.commands import AddPartitions, AlterTopic, CreateTopic, DeleteTopic
from metadata.engine import Fate, Outcome
from metadata.placement import default_replication_factor, place
from metadata.view import ClusterView
from raftlog.config import MAX_PARTITIONS_PER_TOPIC, TOPIC_CONFIG_NAMES, check_topic_name, parse_topic_config
from raftlog.errors import InvalidRequest, RetriableError
from raftlog.model import BrokerId, TopicId, TopicRecord
from raftlog.ports import Random

from .futures import resolve
from .linearizable import catch_up

DEADLINE_SECONDS = 15.0
RETRY_SECONDS = 0.05
"""Before what reached no log is proposed again."""
LEADERS_WAIT_SECONDS = 2.0
LEAST_SECONDS = 0.1
"""What a proposal gets, however late it is."""


class Proposer(Protocol):
    """The part of the quorum that is needed here."""

    def read_barrier(self, done: Callable[[Outcome], None], *, timeout: float = 5.0) -> None: ...

    def propose(self, command: Command, done: Callable[[Outcome], None], *, timeout: float = 5.0) -> None: ...


class TopicAdministrator:
    """Creates, deletes and changes topics. Lives on the broker's loop."""

    def __init__(
        self,
        view: ClusterView,
        quorum: Proposer,
        random: Random,
        when_view_reaches: Callable[[int, Callable[[], None]], None],
    ) -> None:
        self._view = view
        self._quorum = quorum
        self._random = random
        self._when_view_reaches = when_view_reaches

    async def create(
        self, name: str, partition_count: int, replication_factor: int | None, configs: Mapping[str, str]
    ) -> None:
        """Decide a new topic and wait for its leaders. Raises as `BrokerService.create_topic`."""
        check_topic_name(name)
        parse_topic_config(configs)
        self._check_partition_count(partition_count)
        await self.catch_up()
        factor = replication_factor or default_replication_factor(self._view.brokers())
        replicas = self._place(partition_count, factor, self._random.randrange(0, 1 << 20))
        topic_id = TopicId(self._random.randbytes(16))
        await self.decide(CreateTopic(name, topic_id, replicas, tuple(sorted(configs.items()))))
        await self._wait_for_leaders(topic_id)

    async def delete(self, name: str, meant: TopicId | None = None) -> None:
        """Raises as `BrokerService.delete_topic`."""
        await self.catch_up()
        topic_id = self._topic(name).topic_id
        if meant not in (None, topic_id):
            gone = f"topic {name!r} of the id {meant.hex()} was deleted; the present one is another"
            raise InvalidRequest("unknown_topic", gone)
        await self._decide_unless(DeleteTopic(topic_id), lambda: self._view.topic_by_id(topic_id) is None)

    async def alter(self, name: str, assign: Mapping[str, str], remove: Sequence[str]) -> None:
        """Raises as `BrokerService.alter_topic`."""
        parse_topic_config(assign)
        unknown = sorted(set(remove) - set(TOPIC_CONFIG_NAMES))
        if unknown:
            raise InvalidRequest("invalid_config", f"unknown topic setting {unknown[0][:64]!r}")
        await self.catch_up()
        topic_id = self._topic(name).topic_id
        await self.decide(AlterTopic(topic_id, tuple(sorted(assign.items())), tuple(sorted(set(remove)))))

    async def add_partitions(self, name: str, partition_count: int) -> None:
        """Raises as `BrokerService.add_partitions`."""
        self._check_partition_count(partition_count)
        await self.catch_up()
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

    async def catch_up(self) -> None:
        """Bring the view to all that the quorum has decided by now. Raises `RetriableError` (`quorum_unavailable`)."""
        if not await catch_up(self._quorum, self._when_view_reaches, DEADLINE_SECONDS):
            raise RetriableError("quorum_unavailable", "the metadata quorum does not answer; nothing was changed")

    async def decide(self, command: Command) -> CommandResult:
        """The state machine's answer, once this node's view shows what was decided. Raises the refusal, or
        `RetriableError`: `quorum_unavailable` where nothing was decided, `outcome_unknown` where that is not known."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + DEADLINE_SECONDS
        while True:
            answered: asyncio.Future[Outcome] = loop.create_future()
            timeout = max(deadline - loop.time(), LEAST_SECONDS)
            self._quorum.propose(command, partial(resolve, answered), timeout=timeout)
            outcome = await answered
            if outcome.fate is Fate.APPLIED and outcome.result is not None:
                await self._seen(outcome.index)
                if isinstance(outcome.result, Refused):
                    raise outcome.result.error()
                return outcome.result
            if outcome.fate is not Fate.REFUSED:
                raise RetriableError("outcome_unknown", f"the quorum's decision is not known: {outcome.detail}")
            if loop.time() >= deadline:
                raise RetriableError("quorum_unavailable", f"the metadata quorum cannot decide: {outcome.detail}")
            await asyncio.sleep(RETRY_SECONDS)

    async def _decide_unless(self, command: Command, is_done: Callable[[], bool]) -> None:
        """Where the outcome is unknown and the view shows that what was asked for is so, it is done."""
        try:
            await self.decide(command)
        except RetriableError as error:
            if error.code != "outcome_unknown" or not is_done():
                raise

    async def _seen(self, index: int) -> None:
        """This node's view shows what was decided. Raises `RetriableError`."""
        seen: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._when_view_reaches(index, lambda: resolve(seen, None))
        try:
            await asyncio.wait_for(seen, DEADLINE_SECONDS)
        except TimeoutError:
            raise RetriableError("request_timed_out", "it is decided, and this node does not know it yet") from None

    async def _wait_for_leaders(self, topic_id: TopicId) -> None:
        """Until every partition has a leader, for a while: a topic without leaders exists all the same."""
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
        brokers, carried = self._view.brokers(), self._view.tally.replicas
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
                "invalid_request", f"a topic has 1 to {MAX_PARTITIONS_PER_TOPIC} partitions, not {count}"
            )
