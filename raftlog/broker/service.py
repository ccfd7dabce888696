"""The `BrokerService` behind the HTTP API: executes each request here, or forwards it to the right broker.

Any node accepts any request. Requests about partitions are split by leader: this broker serves its own part and
forwards the others, by one hop and no further. If a leader has moved, the answer is `not_leader`, which is safe to
retry: the router waits for its view to advance and retries until the request's time is over. If the connection of a
forwarded produce breaks, the batch may have been appended. The router resends it only if its producer is idempotent;
otherwise the answer says that the outcome is unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence

import msgspec
import structlog

from http_api.service.scrubs import ScrubProgress
from http_api.service.service import Health
from http_api.service.transactions import OpenTransaction
from metadata.commands.cluster import GrantProducerIds
from metadata.commands.results import ProducerIdsGranted
from metadata.quorum.port import MetadataQuorum
from metadata.view import ClusterView
from partitions.upkeep.scrubber import Scrubber
from raftlog.broker.changes.feature_levels import finalize
from raftlog.broker.changes.group_batches import GroupBatches
from raftlog.broker.changes.groups import Groups
from raftlog.broker.changes.moves import MoveAdministrator
from raftlog.broker.changes.proposer import Proposer
from raftlog.broker.changes.topics import TopicAdministrator
from raftlog.broker.changes.transaction_batches import TransactionBatches
from raftlog.broker.changes.transactions import Transactions
from raftlog.broker.changes.voters import change_voters
from raftlog.broker.requests.deletions import DeletionRouter
from raftlog.broker.requests.fetch import FetchRouter
from raftlog.broker.requests.forwarding import Forwarder
from raftlog.broker.requests.leaders import ASKS_ELSEWHERE, READ_PATIENCE_SECONDS, Leaders, Slots
from raftlog.errors import Applied, NotLeader, RaftlogError, error_from_code
from raftlog.model import (
    BrokerId,
    FeatureLevelChange,
    ProducerEpoch,
    ProducerId,
    QuorumStatus,
    TopicPartition,
    VotersChange,
)
from raftlog.ports import Clock, Logger, Part, Random
from raftlog.records.batch import parse_header
from raftlog.wire import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FoundOffset,
    OffsetQuery,
    OffsetsRequest,
    OffsetsResponse,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)

from .futures import answer_of
from .health import health_of
from .loop_stalls import LoopStalls
from .wiring import Broker

PRODUCER_ID_BLOCK = 1000
CATCH_UP_SECONDS = 2.0
MAX_OPEN_SHOWN = 2_500
"""Maximum number of open transactions that a node lists, the oldest of each partition first: ten milliseconds of its
loop."""


class Router:
    """The implementation of `http_api.service.service.BrokerService`. All calls are made on the broker's loop."""

    def __init__(
        self,
        broker: Broker,
        quorum: MetadataQuorum,
        forwarder: Forwarder,
        random: Random,
        *,
        stalls: LoopStalls | None = None,
        groups: Groups | None = None,
        transactions: Transactions | None = None,
        own_problems: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """`own_problems` returns problems of this node that only it can see."""
        self._broker = broker
        self._quorum = quorum
        self._forwarder = forwarder
        self._proposer = Proposer(quorum, broker.when_view_reaches)
        self.topics = TopicAdministrator(broker.view, self._proposer, random)
        self.moves = MoveAdministrator(
            broker.view, lambda: broker.manager.drivers, self._proposer, structlog.get_logger()
        )
        self._groups = groups
        self._transactions = transactions
        self._stalls = stalls
        self._own_problems = own_problems
        self._leaders = Leaders(broker.view)
        self._fetches = FetchRouter(broker.identity.node_id, broker.local, forwarder, self._leaders)
        self._deletions = DeletionRouter(broker.identity.node_id, broker.local, forwarder, self._leaders, self.offsets)
        self._producer_ids = range(0)
        self._producer_ids_lock = asyncio.Lock()

    @property
    def node_id(self) -> BrokerId:
        return self._broker.identity.node_id

    @property
    def cluster_id(self) -> str:
        return self._broker.identity.cluster_id

    @property
    def knows_cluster(self) -> bool:
        return self._broker.manager.active

    @property
    def groups(self) -> Groups:
        assert self._groups is not None, "this broker was created without groups"
        return self._groups

    @property
    def transactions(self) -> Transactions:
        assert self._transactions is not None, "this broker was created without transactions"
        return self._transactions

    @property
    def scrubs(self) -> Scrubs:
        return Scrubs(self._broker.scrubber)

    @property
    def view(self) -> ClusterView:
        return self._broker.view

    async def produce(self, request: ProduceRequest, batches: Sequence[memoryview]) -> ProduceResponse:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + request.timeout_ms / 1000
        await self._know_topics(request.partitions)
        slots: Slots[ProducedPartition] = Slots(len(request.partitions))
        while slots.open:
            groups = self._leaders.groups(request.partitions, slots, _failed_produce)
            # A broker gets the time that is left, not the whole time again.
            left_ms = max(int((deadline - loop.time()) * 1000), 0)
            request = msgspec.structs.replace(request, timeout_ms=left_ms)
            await asyncio.gather(
                *(self._produce_at(leader, request, batches, positions, slots) for leader, positions in groups.items())
            )
            if slots.open and not await self._leaders.retry_before(deadline):
                break
        answers = [_told(answer, n in slots.maybe_applied) for n, answer in enumerate(slots.in_order())]
        return ProduceResponse(request.correlation_id, answers)

    async def _produce_at(
        self,
        leader: BrokerId,
        request: ProduceRequest,
        batches: Sequence[memoryview],
        positions: list[int],
        slots: Slots[ProducedPartition],
    ) -> None:
        chosen = [batches[position] for position in positions]
        targets = [_marked(request.partitions[position], position in slots.maybe_applied) for position in positions]
        part = msgspec.structs.replace(request, partitions=targets, forwarded=True)
        try:
            response = await self._produce_part(leader, part, chosen)
        except RaftlogError as error:
            for position, batch in zip(positions, chosen, strict=True):
                again = error.retriable and (error.applied is Applied.NO or _is_idempotent(batch))
                if error.applied is not Applied.NO:
                    slots.maybe_applied.add(position)
                slots.settle(position, _failed_produce(request.partitions[position], error), final=not again)
            return
        for position, told in zip(positions, response.partitions, strict=True):
            answer = self._leaders.weighed(told)
            slots.settle(position, answer, final=answer.error not in ASKS_ELSEWHERE)

    async def _produce_part(
        self, leader: BrokerId, request: ProduceRequest, batches: Sequence[memoryview]
    ) -> ProduceResponse:
        if leader != self.node_id:
            return await self._forwarder.produce(leader, request, batches)
        return await answer_of(lambda tell: self._broker.local.produce(request, batches, tell))

    async def fetch(self, request: FetchRequest) -> tuple[FetchResponse, list[Part]]:
        await self._know_topics(request.partitions)
        return await self._fetches.fetch(request)

    async def offsets(self, request: OffsetsRequest) -> OffsetsResponse:
        await self._know_topics(request.partitions)
        deadline = asyncio.get_running_loop().time() + READ_PATIENCE_SECONDS
        slots: Slots[FoundOffset] = Slots(len(request.partitions))
        while slots.open:
            groups = self._leaders.groups(request.partitions, slots, _failed_offset)
            await asyncio.gather(
                *(self._offsets_at(leader, request, positions, slots) for leader, positions in groups.items())
            )
            if slots.open and not await self._leaders.retry_before(deadline):
                break
        return OffsetsResponse(request.correlation_id, slots.in_order())

    async def _offsets_at(
        self, leader: BrokerId, request: OffsetsRequest, positions: list[int], slots: Slots[FoundOffset]
    ) -> None:
        targets = [request.partitions[position] for position in positions]
        part = msgspec.structs.replace(request, partitions=targets, forwarded=True)
        try:
            if leader == self.node_id:
                response: OffsetsResponse = await answer_of(lambda tell: self._broker.local.offsets(part, tell))
            else:
                response = await self._forwarder.offsets(leader, part)
        except RaftlogError as error:
            for position in positions:
                slots.settle(position, _failed_offset(request.partitions[position], error), final=not error.retriable)
            return
        for position, told in zip(positions, response.partitions, strict=True):
            answer = self._leaders.weighed(told)
            slots.settle(position, answer, final=answer.error not in {*ASKS_ELSEWHERE, "offset_not_available"})

    async def delete_records(self, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        await self._know_topics(request.partitions)
        return await self._deletions.delete_records(request)

    async def allocate_producer_id(self) -> tuple[ProducerId, ProducerEpoch]:
        async with self._producer_ids_lock:
            if not self._producer_ids:
                asked = GrantProducerIds(self.node_id, self._broker.incarnation, PRODUCER_ID_BLOCK)
                granted = await self._proposer.decide(asked)
                assert isinstance(granted, ProducerIdsGranted), granted
                self._producer_ids = range(granted.first, granted.first + granted.count)
            first, self._producer_ids = self._producer_ids[0], self._producer_ids[1:]
        return ProducerId(first), ProducerEpoch(0)

    async def _know_topics(
        self, asked: Sequence[ProducePartition | FetchPartition | OffsetQuery | DeleteRecordsPartition]
    ) -> None:
        """Catch up if a topic or partition is unknown here.

        Topic ids are random, so a client has one from some node, which may know more than this one: the topic, or a
        higher partition count.
        """
        if not all(self._leaders.has_heard_of(target.topic_id, target.partition) for target in asked):
            self._leaders.may_be_behind = not await self.catch_up()

    async def catch_up(self) -> bool:
        """Bring the view up to everything that the quorum has decided (S7). False: the quorum does not answer."""
        return await self._proposer.catch_up_within(CATCH_UP_SECONDS)

    def health(self) -> Health:
        return health_of(self._broker, self._quorum.status(), self._stalls, self._own_problems())

    async def change_voters(self, action: str, node_id: int, *, plan: bool) -> VotersChange:
        return await change_voters(self._quorum, action, node_id, plan=plan)

    async def finalize_feature_level(self, level: int | None, *, plan: bool) -> FeatureLevelChange:
        return await finalize(self._broker.view, self._proposer, self.quorum_status, level, plan=plan)

    async def quorum_status(self) -> QuorumStatus:
        return await answer_of(self._quorum.leader_status)


class Scrubs:
    """This broker's scrubber for the HTTP API (`http_api/service/scrubs.py`). All calls are made on the broker's
    loop."""

    def __init__(self, scrubber: Scrubber) -> None:
        self._scrubber = scrubber

    def scrub_now(self, wanted: Collection[TopicPartition]) -> None:
        self._scrubber.scrub_now(wanted)

    def scrub_progress(self) -> ScrubProgress:
        run = self._scrubber.run
        findings = [(found.topic_partition, str(found.finding)) for found in run.findings]
        return ScrubProgress(run.running, run.wanted, run.done, run.total_bytes, run.bytes_read, findings)


def groups_of(broker: Broker, quorum: MetadataQuorum, forwarder: Forwarder, clock: Clock, logger: Logger) -> Groups:
    """Return the consumer groups of one node's broker."""
    view = broker.view
    return Groups(
        node_id=broker.identity.node_id,
        view=view,
        quorum=quorum,
        batches=GroupBatches(quorum, broker.when_view_reaches, lambda: view.feature_level),
        forwarder=forwarder,
        clock=clock,
        logger=logger,
        offsets_retention_ms=broker.config.offsets_retention_minutes * 60_000,
    )


def transactions_of(
    broker: Broker, quorum: MetadataQuorum, clock: Clock, random: Random, logger: Logger
) -> Transactions:
    """Return the transactions of one node's broker."""
    view = broker.view

    def open_here() -> list[OpenTransaction]:
        now, now_ms = clock.monotonic(), broker.cluster_clock.stamp_ms()
        return [
            OpenTransaction(
                one.key,
                one.topic_partition,
                one.first_offset,
                -1 if one.since is None else now_ms - int((now - one.since) * 1000),
            )
            for one in broker.manager.transactions.open_transactions(MAX_OPEN_SHOWN)
        ]

    return Transactions(
        node_id=broker.identity.node_id,
        view=view,
        quorum=quorum,
        batches=TransactionBatches(quorum, broker.when_view_reaches, lambda: view.feature_level),
        clock=clock,
        random=random,
        logger=logger,
        unused_ms=broker.config.transactional_id_expiration_minutes * 60_000,
        open_here=open_here,
    )


def _marked(target: ProducePartition, maybe_applied: bool) -> ProducePartition:
    """Mark a batch as resent if it may have been applied. A mark of the request itself is kept."""
    return msgspec.structs.replace(target, resent=True) if maybe_applied and not target.resent else target


def _told(answer: ProducedPartition, maybe_applied: bool) -> ProducedPartition:
    """Return the last attempt's answer, corrected for earlier attempts, which may have been applied (S1)."""
    if not (maybe_applied and answer.error) or error_from_code(answer.error, "").applied is not Applied.NO:
        return answer
    why = f"an earlier attempt was not answered, and the last one failed with {answer.error}: {answer.detail}"
    return ProducedPartition(answer.topic_id, answer.partition, "outcome_unknown", why)


def _is_idempotent(batch: memoryview) -> bool:
    try:
        return parse_header(batch).producer_id >= 0
    except RaftlogError:
        return False


def _failed_produce(target: ProducePartition, error: RaftlogError) -> ProducedPartition:
    leader = error.leader if isinstance(error, NotLeader) else -1
    return ProducedPartition(target.topic_id, target.partition, error.code, error.detail, leader=leader)


def _failed_offset(target: OffsetQuery, error: RaftlogError) -> FoundOffset:
    return FoundOffset(target.topic_id, target.partition, error.code, error.detail)
