"""Requests of operators as commands: reassignments, manual elections, removal of brokers.

Each request begins with a linearizable read (S7), and each command names the partition epoch that this node's view then
shows. If the record has changed meanwhile, the command is refused as stale and built again, a few times. If a partition
is already as requested, no command is needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from metadata.commands.cluster import MAX_ELECTIONS_PER_COMMAND, ElectLeaders
from metadata.commands.fields import Election
from metadata.commands.replicas import (
    MAX_REASSIGNMENTS_PER_COMMAND,
    THROTTLE_FEATURE_LEVEL,
    AlterReassignments,
    ElectUnclean,
    Reassignment,
    ThrottleReassignments,
    UnregisterBroker,
)
from metadata.commands.results import Elected, ReassignmentsAltered, Refused
from metadata.rules.balance import balance, drain
from metadata.view import ClusterView
from partitions.driver.driver import PartitionDriver
from raftlog.api.moves import MoveInfo, ReplicaInfo
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError
from raftlog.model import BrokerId, PartitionRecord, ReplicationThrottle, TopicPartition
from raftlog.ports import Logger

from .feature_levels import check_level
from .proposer import Proposer

ATTEMPTS = 5
"""Attempts for a partition whose record keeps changing: its leader alters the ISR now and then, not all the time."""


class MoveAdministrator:
    """See `http_api.service.moves.MoveService`. All calls are made on the broker's loop."""

    def __init__(
        self,
        view: ClusterView,
        drivers: Callable[[], Mapping[TopicPartition, PartitionDriver]],
        proposer: Proposer,
        logger: Logger,
    ) -> None:
        """`drivers` returns this node's current replicas."""
        self._view = view
        self._drivers = drivers
        self._proposer = proposer
        self._logger = logger

    async def plan(self, drain_brokers: Sequence[BrokerId]) -> list[MoveInfo]:
        await self._proposer.catch_up()
        brokers = self._view.brokers()
        partitions = self._view.partitions()
        if drain_brokers:
            names = {topic.topic_id: topic.name for topic in self._view.topics()}
            moves = await asyncio.to_thread(drain, brokers, partitions, drain_brokers, names)
        else:
            moves = await asyncio.to_thread(balance, brokers, partitions)
        found = []
        for move in moves:
            tp = move.topic_partition
            topic, record = self._view.topic_by_id(tp.topic_id), self._view.partition(tp)
            if topic is not None and record is not None:
                leader = record.leader if record.has_leader else None
                found.append(MoveInfo(topic.name, tp.partition, list(move.replicas), list(move.target), leader))
        return found

    async def reassign(
        self,
        wanted: Mapping[TopicPartition, tuple[BrokerId, ...] | None],
        throttle: ReplicationThrottle | None = None,
    ) -> list[RaftlogError | None]:
        await self._proposer.catch_up()
        if throttle is not None and not wanted and not self._view.reassigning():
            raise InvalidRequest("no_reassignment_in_progress", "there is no reassignment to throttle")

        if throttle is not None:
            check_level(self._view.feature_level, THROTTLE_FEATURE_LEVEL, "reassignments can be throttled")

        async def decide(asked: tuple[Reassignment, ...]) -> Sequence[Refused | None]:
            if throttle is None:
                result = await self._proposer.decide(AlterReassignments(asked))
            else:
                throttled = ThrottleReassignments(asked, throttle.leader_rate, throttle.follower_rate)
                result = await self._proposer.decide(throttled)
            assert isinstance(result, ReassignmentsAltered), result
            return result.refusals

        async def ask(records: Sequence[PartitionRecord]) -> Sequence[Refused | None]:
            asked = tuple(
                Reassignment(
                    r.topic_partition.topic_id,
                    r.topic_partition.partition,
                    r.partition_epoch,
                    wanted[r.topic_partition] or (),
                )
                for r in records
            )
            return await decide(asked)

        def is_done(record: PartitionRecord) -> bool:
            target = wanted[record.topic_partition]
            if target is None:
                return False  # It may have completed instead of being cancelled.
            return record.target_replicas == target or (record.replicas == target and not record.target_replicas)

        answers = await self._ask_all(list(wanted), MAX_REASSIGNMENTS_PER_COMMAND, ask, is_done)
        # A reassignment that was already in progress needs no command, but may need other rates.
        carried_out = None in answers or not answers
        if throttle is not None and throttle != self._view.throttle and carried_out and self._view.reassigning():
            await decide(())
        return answers

    async def elect_preferred(self, asked: Sequence[TopicPartition]) -> list[RaftlogError | None]:
        await self._proposer.catch_up()

        async def ask(records: Sequence[PartitionRecord]) -> Sequence[Refused | None]:
            result = await self._proposer.decide(ElectLeaders(tuple(map(self._preferred, records))))
            assert isinstance(result, Elected), result
            return result.refusals

        def is_done(record: PartitionRecord) -> bool:
            return record.leader == record.replicas[0]

        return await self._ask_all(asked, MAX_ELECTIONS_PER_COMMAND, ask, is_done)

    async def elect_unclean(
        self, asked: Sequence[TopicPartition], candidate: BrokerId | None
    ) -> list[RaftlogError | None]:
        await self._proposer.catch_up()

        async def ask(records: Sequence[PartitionRecord]) -> Sequence[Refused | None]:
            (record,) = records
            chosen = self._least_loss(record) if candidate is None else candidate
            broker = self._view.broker(chosen)
            if broker is None:
                return (Refused("not_eligible", f"no live broker has a replica of {self._name(record)}"),)
            tp = record.topic_partition
            self._logger.warning("unclean_election", partition=self._name(record), candidate=chosen, record=str(record))
            command = ElectUnclean(tp.topic_id, tp.partition, chosen, broker.incarnation, record.partition_epoch)
            try:
                await self._proposer.decide(command)
            except RaftlogError as error:
                self._logger.warning("unclean_election_refused", partition=self._name(record), error=str(error))
                return (Refused(error.code, error.detail),)
            self._logger.warning("records_may_be_lost", partition=self._name(record), leader=chosen)
            return (None,)

        return await self._ask_all(asked, 1, ask, lambda record: False)

    async def unregister(self, broker_id: BrokerId) -> None:
        await self._proposer.catch_up()
        broker = self._view.broker(broker_id)
        if broker is None:
            raise InvalidRequest("not_found", f"broker {broker_id} is not registered")
        await self._proposer.decide(UnregisterBroker(broker_id, broker.incarnation))

    def replicas(self) -> list[ReplicaInfo]:
        found = []
        for tp, driver in sorted(self._drivers().items()):
            topic = self._view.topic_by_id(tp.topic_id)
            if topic is None:
                continue
            log = driver.log
            replica = driver.replica
            role = "offline" if replica.offline else "leader" if replica.leader else "follower"
            role = role if replica.offline or replica.leader or replica.follower else "idle"
            found.append(ReplicaInfo(topic.name, tp.partition, log.size_bytes, log.log_end_offset, role))
        return found

    # --- Inside ------------------------------------------------------------------------------------------------------

    async def _ask_all(
        self,
        asked: Sequence[TopicPartition],
        at_once: int,
        ask: Callable[[Sequence[PartitionRecord]], Awaitable[Sequence[Refused | None]]],
        is_done: Callable[[PartitionRecord], bool],
    ) -> list[RaftlogError | None]:
        """Propose for each partition until it is answered, by its latest record each time."""
        answers: dict[TopicPartition, RaftlogError | None] = {}
        left = list(dict.fromkeys(asked))
        for _ in range(ATTEMPTS):
            known: list[PartitionRecord] = []
            for tp in left:
                record = self._view.partition(tp)
                if record is None:
                    answers[tp] = InvalidRequest("unknown_partition", f"there is no partition {tp}")
                elif is_done(record):
                    answers[tp] = None
                else:
                    known.append(record)
            left = []
            for start in range(0, len(known), at_once):
                some = known[start : start + at_once]
                for record, refused in zip(some, await self._answers(ask, some), strict=True):
                    answers[record.topic_partition] = None if refused is None else refused.error()
                    if refused is not None and refused.code == "stale_partition_epoch":
                        left.append(record.topic_partition)
            if not left:
                break
        return [answers[tp] for tp in asked]

    async def _answers(
        self,
        ask: Callable[[Sequence[PartitionRecord]], Awaitable[Sequence[Refused | None]]],
        records: Sequence[PartitionRecord],
    ) -> Sequence[Refused | None]:
        """Return the answers about these records.

        A silent quorum is an answer too: other records were decided, which is worth reporting.
        """
        try:
            return await ask(records)
        except RetriableError as error:
            return [Refused(error.code, error.detail)] * len(records)

    def _preferred(self, record: PartitionRecord) -> Election:
        tp = record.topic_partition
        preferred = record.replicas[0]
        broker = self._view.broker(preferred)
        assert broker is not None, "a replica of no broker"
        return Election(tp.topic_id, tp.partition, preferred, broker.incarnation, record.partition_epoch)

    def _least_loss(self, record: PartitionRecord) -> BrokerId:
        """Return the live replica that is likely to lose least.

        Members of the ISR or the commit set come first, then the greatest reported log.
        """
        tickets = {ticket.broker_id: ticket for ticket in self._view.tickets_of(record.topic_partition)}
        live = [replica for replica in record.replicas if self._view.alive(replica)]

        def worth(replica: BrokerId) -> tuple[bool, bool, int, int]:
            ticket = tickets.get(replica)
            member = replica in record.isr or replica in record.commit_set
            if ticket is None:
                return (member, True, -1, -1)
            return (member, ticket.has_directory, ticket.last_epoch, ticket.stable_end_offset)

        return max(live, key=worth, default=BrokerId(-1))

    def _name(self, record: PartitionRecord) -> str:
        topic = self._view.topic_by_id(record.topic_partition.topic_id)
        return f"{topic.name if topic else '?'}/{record.topic_partition.partition}"
