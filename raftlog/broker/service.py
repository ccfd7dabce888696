"""The `BrokerService` behind the HTTP API. Any node accepts any request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from functools import cached_property

import structlog

from http_api.service.audit import AuditService
from http_api.service.metrics import MetricsService
from http_api.service.plots import PlotService
from http_api.service.service import PartitionService
from http_api.service.transactions import OpenTransaction
from metadata.commands.cluster import GrantProducerIds, GrantProducerIdsTo
from metadata.commands.results import ProducerIdsGranted
from metadata.commands.security import SECURITY_FEATURE_LEVEL
from metadata.quorum.port import MetadataQuorum
from metadata.records.owners import NO_OWNER
from raftlog.api.cluster import HealthInfo, RollCheck
from raftlog.api.scrubs import Scrub, ScrubFinding
from raftlog.broker.changes.group_batches import GroupBatches
from raftlog.broker.changes.groups import ForwardsHeartbeats, Groups
from raftlog.broker.changes.leases import GroupLeases
from raftlog.broker.changes.moves import MoveAdministrator
from raftlog.broker.changes.proposer import Proposer
from raftlog.broker.changes.quorum import QuorumAdministrator
from raftlog.broker.changes.topics import TopicAdministrator
from raftlog.broker.changes.transaction_batches import TransactionBatches
from raftlog.broker.changes.transactions import Transactions
from raftlog.broker.requests.callers import CallerPartitions, PartitionRouters
from raftlog.broker.requests.forwarding import Forwarder
from raftlog.broker.security.access.request_access import GuardedAccess, OpenAccess
from raftlog.broker.security.administration.administrator import HashPassword, SecurityAdministrator
from raftlog.broker.security.audit.recent import NO_AUDIT
from raftlog.broker.security.authentication.tokens import new_token
from raftlog.errors import InvalidRequest
from raftlog.model import BrokerId, ProducerEpoch, ProducerId, TopicPartition
from raftlog.ports import Clock, Logger, Random, Scheduler, Worker
from raftlog.security.principals import Caller

from .explain.gathering import AskNode, Explainer, ask_no_other
from .explain.own_facts import OwnFacts
from .health import health_of
from .instances.instances import HttpInstances
from .instances.links import OwnerLinks
from .instances.owner import InstanceOwner
from .loop_stalls import LoopStalls
from .plots.plots import NoPlots
from .roll_check import roll_reasons
from .wiring import Broker

PRODUCER_ID_BLOCK = 1000
MAX_ALLOCATING = 1_000
"""The most principals for which producer ids are kept that were granted and not given out."""
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
        groups: Groups,
        transactions: Transactions,
        access: OpenAccess | GuardedAccess,
        hash_password: HashPassword,
        metrics: MetricsService,
        *,
        stalls: LoopStalls | None = None,
        own_problems: Callable[[], Sequence[str]] = tuple,
        expired: Callable[[], Sequence[str]] = tuple,
        ask: AskNode = ask_no_other,
        audit: AuditService = NO_AUDIT,
        plots: PlotService | None = None,
        links: OwnerLinks | None = None,
    ) -> None:
        """`own_problems` returns problems of this node that only it can see, `expired` those of certificates that have
        expired. `ask` gets the facts of other nodes for explanations. `audit` has the newest lines of the audit log,
        `plots` the last day of the main numbers. `links` lead to the owners of HTTP consumers."""
        self.node_id = broker.identity.node_id
        self.cluster_id = broker.identity.cluster_id
        self.view = broker.view
        self.groups = groups
        self.transactions = transactions
        self.scrubs = Scrubs(broker)
        self._broker = broker
        self._metadata_quorum = quorum
        self._forwarder = forwarder
        self._proposer = Proposer(quorum, broker.when_view_reaches)
        self.quorum = QuorumAdministrator(broker.view, quorum, self._proposer)
        self.topics = TopicAdministrator(broker.view, self._proposer, random)
        self.moves = MoveAdministrator(
            broker.view, lambda: broker.manager.drivers, self._proposer, structlog.get_logger()
        )
        self._random = random
        self.access = access
        self.recent_audit = audit
        self.metrics = metrics
        self.plots = plots or NoPlots()
        self.security = SecurityAdministrator(
            broker.view, self._proposer, hash_password, new_token, broker.cluster_clock.stamp_ms
        )
        self._stalls = stalls
        self._own_problems = own_problems
        self._routers = PartitionRouters(self.node_id, broker.local, forwarder, broker.view, self.catch_up)
        self.partitions = self._routers.of_everybody()
        self._links = links or OwnerLinks(lambda node: None)
        self._expired, self._ask = expired, ask
        self._producer_ids: dict[str, range] = {}
        """Principal → granted producer ids that are not given out yet; the least recent use first."""
        self._producer_ids_lock = asyncio.Lock()

    @cached_property
    def instance_owner(self) -> InstanceOwner:
        """The HTTP consumers that this node owns."""
        broker = self._broker
        return InstanceOwner(
            self.node_id,
            broker.view,
            self.groups,
            self.partitions,
            lambda: broker.incarnation,
            self.catch_up,
            broker.clock,
            structlog.get_logger(),
            timeout_s=broker.config.rest_consumer_timeout_ms / 1000,
        )

    @cached_property
    def instances(self) -> HttpInstances:
        broker = self._broker
        return HttpInstances(
            self.node_id,
            broker.view,
            self.groups,
            self.instance_owner,
            self._links,
            lambda: broker.incarnation,
            self.catch_up,
            broker.clock,
        )

    @cached_property
    def leases(self) -> GroupLeases:
        """Leases of ranges of records. Their ages count from the first request for one."""
        return GroupLeases(self.view, self.groups, self.catch_up, self._broker.clock, self._random)

    @cached_property
    def own_facts(self) -> OwnFacts:
        """The facts about this node, for explanations here and on other nodes."""
        broker = self._broker
        return OwnFacts(
            self.node_id,
            broker.view,
            broker.manager,
            broker.cluster_clock,
            broker.clock,
            broker.history,
            self._metadata_quorum.status,
            self._own_problems,
            self._expired,
        )

    @cached_property
    def explain(self) -> Explainer:
        broker = self._broker
        return Explainer(
            self.node_id,
            broker.view,
            self.own_facts,
            self._ask,
            self._metadata_quorum.status,
            self.as_caller,
            broker.cluster_clock.stamp_ms,
            broker.config.timing.replica_lag_max_ms,
            broker.history,
        )

    @property
    def knows_cluster(self) -> bool:
        return self._broker.manager.active

    def as_caller(self, caller: Caller) -> PartitionService:
        """Return the partitions as a caller may use them."""
        guard = self.access.guard
        return self.partitions if guard is None else CallerPartitions(self._routers, guard, caller)

    async def allocate_producer_id(self, principal: str = NO_OWNER) -> tuple[ProducerId, ProducerEpoch]:
        if self.view.feature_level < SECURITY_FEATURE_LEVEL:
            principal = NO_OWNER  # Older nodes do not know the command.
        async with self._producer_ids_lock:
            left = self._producer_ids.pop(principal, range(0)) or await self._granted(principal)
            if len(left) > 1:
                # The last one: those of the principal that asked least recently are given up first.
                self._producer_ids[principal] = left[1:]
            if len(self._producer_ids) > MAX_ALLOCATING:
                del self._producer_ids[next(iter(self._producer_ids))]
        return ProducerId(left[0]), ProducerEpoch(0)

    async def _granted(self, principal: str) -> range:
        """Return producer ids that belong to this principal, which no other node gets."""
        incarnation = self._broker.incarnation
        if principal == NO_OWNER:
            asked = GrantProducerIds(self.node_id, incarnation, PRODUCER_ID_BLOCK)
        else:
            asked = GrantProducerIdsTo(self.node_id, incarnation, PRODUCER_ID_BLOCK, principal)
        granted = await self._proposer.decide(asked)
        assert isinstance(granted, ProducerIdsGranted), granted
        return range(granted.first, granted.first + granted.count)

    async def catch_up(self) -> bool:
        """Bring the view up to everything that the quorum has decided (S7). False: the quorum does not answer."""
        return await self._proposer.catch_up_within(CATCH_UP_SECONDS)

    async def roll_check(self, node: BrokerId) -> RollCheck:
        """See `http_api.service.service.BrokerService`."""
        if not await self.catch_up():
            return RollCheck(node, False, ["the metadata quorum does not answer"])
        if self.view.broker(node) is None:
            raise InvalidRequest("not_found", f"there is no node {node}")
        reasons = await roll_reasons(self.view, await self.quorum.status(), node)
        return RollCheck(node, not reasons, reasons)

    def health(self) -> HealthInfo:
        return health_of(self._broker, self._metadata_quorum.status(), self._stalls, self._own_problems())


class Scrubs:
    """This broker's scrubber for the HTTP API (`http_api/service/scrubs.py`). All calls are made on the broker's
    loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def scrub_now(self, wanted: Collection[TopicPartition]) -> None:
        self._broker.scrubber.scrub_now(wanted)

    def progress(self) -> Scrub:
        run = self._broker.scrubber.run
        findings = [
            ScrubFinding(topic.name, found.topic_partition.partition, str(found.finding))
            for found in run.findings
            if (topic := self._broker.view.topic_by_id(found.topic_partition.topic_id)) is not None
        ]
        node_id = self._broker.identity.node_id
        return Scrub(node_id, run.running, run.wanted, run.done, run.total_bytes, run.bytes_read, findings)


def groups_of(
    broker: Broker,
    quorum: MetadataQuorum,
    forwarder: ForwardsHeartbeats,
    clock: Clock,
    scheduler: Scheduler,
    worker: Worker,
    logger: Logger,
) -> Groups:
    """Return the consumer groups of one node's broker."""
    view = broker.view
    return Groups(
        node_id=broker.identity.node_id,
        view=view,
        quorum=quorum,
        batches=GroupBatches(quorum, broker.when_view_reaches, lambda: view.feature_level, clock, scheduler),
        forwarder=forwarder,
        catch_up=broker.catch_up,
        clock=clock,
        scheduler=scheduler,
        worker=worker,
        logger=logger,
        offsets_retention_ms=broker.config.offsets_retention_minutes * 60_000,
    )


def transactions_of(
    broker: Broker,
    quorum: MetadataQuorum,
    clock: Clock,
    scheduler: Scheduler,
    worker: Worker,
    random: Random,
    logger: Logger,
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
        batches=TransactionBatches(quorum, broker.when_view_reaches, lambda: view.feature_level, clock, scheduler),
        clock=clock,
        scheduler=scheduler,
        worker=worker,
        random=random,
        logger=logger,
        unused_ms=broker.config.transactional_id_expiration_minutes * 60_000,
        max_timeout_ms=broker.config.transaction_max_timeout_ms,
        open_here=open_here,
    )
