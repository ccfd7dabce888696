"""Collects the facts of a case from this node's view, and from the other nodes at the same time, and has it explained.

A node that does not answer in time is a fact as well. Only the nodes that matter are asked: replicas of the partition,
nodes to which it moves, and the voters of the quorum; for a transaction, all brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from http_api.service.service import PartitionService
from metadata.view import ClusterView, GroupRecord, in_order
from raftlog.api.explain import AccessDecision, Explanation
from raftlog.api.timeline import ClusterChange
from raftlog.errors import InvalidRequest
from raftlog.model import (
    NO_BROKER,
    BrokerId,
    ProducerId,
    QuorumStatus,
    TopicId,
    TopicPartition,
)
from raftlog.patterns import full_matcher
from raftlog.security.principals import Caller
from raftlog.wire import (
    TIMESTAMP_EARLIEST,
    TIMESTAMP_LATEST,
    FoundOffset,
    OffsetQuery,
    OffsetsRequest,
)

from .case import ClusterCase, OpenBy, PartitionCase
from .facts import NodeFacts, OpenFacts, Unanswered
from .group import GroupCase, PartitionFacts, explain_group
from .history import ChangeHistory, merged
from .own_facts import FactsQuery, OwnFacts
from .partition import explain_partition
from .timeline import cluster_change
from .transaction import Place, TransactionCase, explain_transaction

MAX_ASKED = 64
"""The most nodes that one explanation asks."""
MAX_GROUP_PARTITIONS = 1_000
"""The most partitions of a group that are looked at, by name."""
READ_COMMITTED = 1


class AskNode(Protocol):
    """`FactsAsker.ask`."""

    async def __call__(self, node: BrokerId, query: FactsQuery, caller: Caller | None) -> NodeFacts | Unanswered: ...


async def ask_no_other(node: BrokerId, query: FactsQuery, caller: Caller | None) -> NodeFacts | Unanswered:
    """Answer for every other node that this one has no connections for questions."""
    return Unanswered(node, "this node asks no other one")


class Explainer:
    """The implementation of `http_api.service.explain.ExplainService`. All calls are made on the broker's loop."""

    def __init__(
        self,
        node_id: BrokerId,
        view: ClusterView,
        own: OwnFacts,
        ask: AskNode,
        quorum: Callable[[], QuorumStatus],
        partitions: Callable[[Caller], PartitionService],
        now_ms: Callable[[], int],
        lag_max_ms: int,
        history: ChangeHistory,
    ) -> None:
        """`partitions` returns the partitions as a caller may use them; `lag_max_ms`: `replica.lag.time.max.ms`."""
        self._node_id = node_id
        self._view = view
        self._own = own
        self._ask = ask
        self._quorum = quorum
        self._partitions = partitions
        self._now_ms = now_ms
        self._lag_max_ms = lag_max_ms
        self._history = history

    async def partition(
        self,
        topic_partition: TopicPartition,
        offset: int | None,
        caller: Caller | None,
        access: Sequence[AccessDecision] = (),
    ) -> Explanation:
        record = self._view.partition(topic_partition)
        topic = self._view.topic_by_id(topic_partition.topic_id)
        if record is None or topic is None:
            raise InvalidRequest("unknown_partition", f"there is no partition {topic_partition}")
        query = FactsQuery(topic_partition.topic_id, topic_partition.partition, -1 if offset is None else offset)
        cluster = await self._cluster((*record.replicas, *record.target_replicas), query, caller)
        record = self._view.partition(topic_partition)
        if record is None:
            raise InvalidRequest("unknown_partition", f"topic {topic.name!r} was deleted meanwhile")
        config = self._view.topic_config(topic.topic_id)
        leading = cluster.node(record.leader)
        opened = leading.replica.open if leading is not None and leading.replica is not None else []
        return explain_partition(
            PartitionCase(
                cluster,
                topic.name,
                record,
                self._view.explain_offline(topic_partition),
                self._view.throttle,
                "fsync" if config is None else config.flush,
                self._lag_max_ms,
                {one.producer_id: self._by(one) for one in opened},
                access,
                offset,
            )
        )

    async def group(
        self,
        group: GroupRecord,
        caller: Caller,
        describable: Callable[[str], bool],
        access: Sequence[AccessDecision] = (),
    ) -> Explanation:
        owned = {tp for member in group.members.values() for tp in (*member.owned, *member.target)}
        committed = dict(self._view.groups.offsets(group.group_id))
        names: dict[TopicPartition, str] = {}
        for tp in in_order(owned or committed):
            topic = self._view.topic_by_id(tp.topic_id)
            if topic is not None and describable(topic.name) and len(names) < MAX_GROUP_PARTITIONS:
                names[tp] = f"{topic.name}/{tp.partition}"
        service = self._partitions(caller)
        asked = list(names)
        starts, ends, stable = await asyncio.gather(
            _offsets(service, asked, TIMESTAMP_EARLIEST, 0),
            _offsets(service, asked, TIMESTAMP_LATEST, 0),
            _offsets(service, asked, TIMESTAMP_LATEST, READ_COMMITTED),
        )
        partitions = {}
        for at, tp in enumerate(asked):
            at_offset = committed.get(tp)
            trouble = next((one.detail for one in (ends[at], stable[at], starts[at]) if one.error), "")
            partitions[tp] = PartitionFacts(
                names[tp],
                None if at_offset is None else at_offset.offset,
                None if at_offset is None else at_offset.commit_timestamp_ms,
                starts[at].offset if not trouble else None,
                stable[at].offset if not trouble else None,
                ends[at].offset if not trouble else None,
                trouble,
            )
        return explain_group(
            GroupCase(
                group,
                partitions,
                self._view.index,
                self._now_ms(),
                self._node_id,
                self._quorum().leader,
                self._missing_topics(group),
                access,
                {
                    tp: record
                    for tp, record in self._view.leases.of_group(group.group_id).items()
                    if tp in committed and committed[tp].offset == record.committed
                },
            )
        )

    async def transaction(self, transactional_id: str, caller: Caller | None) -> Explanation:
        producer = self._view.transactions.producer(transactional_id)
        if producer is None:
            raise InvalidRequest("unknown_transaction", f"there is no transactional id {transactional_id!r}")
        known = self._view.transactions
        key = producer.key
        query = FactsQuery(producer_id=key.producer_id, producer_epoch=key.producer_epoch)
        everybody = [record.broker_id for record in self._view.brokers()]
        cluster = await self._cluster(everybody, query, caller, voters=False)
        opened = [one for facts in cluster.answered() for one in facts.open]
        ended = producer.ended
        unmarked = known.unmarked_count(ended) if ended is not None else 0
        standing = known.standing(key).value
        if not opened and ended is not None and unmarked:
            key, standing = ended, known.standing(ended).value
        places = [self._place(one, await self._waiting(one, cluster, caller)) for one in opened]
        if key == ended:
            places += self._unmarked(key.producer_id, key.producer_epoch)
        silent = {str(n): found.reason for n in cluster.answers if (found := cluster.silence(n)) is not None}
        return explain_transaction(
            TransactionCase(
                transactional_id, key.producer_id, key.producer_epoch, producer.timeout_ms, standing, places, unmarked,
                self._quorum().leader, self._view.index, self._now_ms(), self._node_id, producer.used_ms, silent,
            )
        )  # fmt: skip

    def changes(self) -> Iterator[ClusterChange]:
        for change in self._history.newest_first():
            if not change.topic_id:
                yield cluster_change(change, None)
            elif (topic := self._view.topic_by_id(TopicId(change.topic_id))) is not None:
                yield cluster_change(change, topic.name)

    # --- Inside ------------------------------------------------------------------------------------------------------

    async def _cluster(
        self, wanted: Iterable[BrokerId], query: FactsQuery, caller: Caller | None, *, voters: bool = True
    ) -> ClusterCase:
        asked = dict.fromkeys((*wanted, *(self._quorum().voters if voters else ())))
        others = [node for node in asked if node != self._node_id][:MAX_ASKED]
        answers = await asyncio.gather(*(self._ask(node, query, caller) for node in others))
        own = self._own.answer(query)
        found: dict[int, NodeFacts | Unanswered] = {self._node_id: own}
        found |= dict(zip(others, answers, strict=True))
        heard = [facts for facts in found.values() if isinstance(facts, NodeFacts)]
        return ClusterCase(
            self._node_id,
            found,
            {record.broker_id: record for record in self._view.brokers()},
            merged(facts.changes for facts in heard),
            self._now_ms(),
            max(facts.view_index for facts in heard),
        )

    def _by(self, one: OpenFacts) -> OpenBy:
        known = self._view.transactions
        producer = known.producer_of(ProducerId(one.producer_id))
        name = "" if producer is None else producer.transactional_id
        block = known.block_of(ProducerId(one.producer_id))
        timeout = producer.timeout_ms if producer is not None else None if block is None else block.timeout_ms
        return OpenBy(name, timeout, "")

    def _missing_topics(self, group: GroupRecord) -> list[str]:
        named = {name for member in group.members.values() for name in member.topics}
        missing = sorted(name for name in named if self._view.topic(name) is None)
        for member in group.members.values():
            if member.pattern and not any(
                full_matcher(member.pattern)(topic.name) is not None for topic in self._view.topics()
            ):
                missing.append(f"pattern {member.pattern}")
        return missing

    def _place(self, one: OpenFacts, waiting: int) -> Place:
        return Place(self._name(one.topic_id, one.partition), one, waiting=waiting)

    async def _waiting(self, one: OpenFacts, cluster: ClusterCase, caller: Caller | None) -> int:
        """Return the records behind a transaction's first one, as far as this node leads the partition."""
        query = FactsQuery(one.topic_id, one.partition)
        record = self._view.partition(TopicPartition(TopicId(one.topic_id), one.partition))
        if record is None or record.leader == NO_BROKER:
            return 0
        local = record.leader == self._node_id
        facts = self._own.answer(query) if local else await self._ask(record.leader, query, caller)
        if isinstance(facts, Unanswered) or facts.replica is None:
            return 0
        return max(0, facts.replica.high_watermark - one.first_offset)

    def _unmarked(self, producer_id: int, producer_epoch: int) -> list[Place]:
        """Return the partitions in which an ended transaction is not marked, some of them if there are many."""
        known = self._view.transactions
        found: list[Place] = []
        for tp in known.partitions_with_ends():
            keys = [(key.producer_id, key.producer_epoch) for key in known.unmarked(tp, MAX_GROUP_PARTITIONS)]
            if (producer_id, producer_epoch) in keys and len(found) < MAX_ASKED:
                trouble = self._view.explain_offline(tp) or ""
                found.append(Place(self._name(tp.topic_id, tp.partition), None, trouble))
        return found

    def _name(self, topic_id: bytes, partition: int) -> str:
        topic = self._view.topic_by_id(TopicId(topic_id))
        return f"{topic_id.hex() if topic is None else topic.name}/{partition}"


async def _offsets(
    service: PartitionService, asked: Sequence[TopicPartition], timestamp: int, isolation: int
) -> list[FoundOffset]:
    if not asked:
        return []
    queries = [OffsetQuery(tp.topic_id, tp.partition, timestamp) for tp in asked]
    response = await service.offsets(OffsetsRequest(0, queries, isolation=isolation))
    return response.partitions
