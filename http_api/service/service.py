"""The broker's port: what the HTTP API needs from the broker behind it.

`http_api` imports no broker; `raftlog/broker/service.py` implements `BrokerService`, and tests bring a small fake.
Every call raises a `RaftlogError` whose code says whose fault it is; a request of `produce`, `fetch` or `offsets`
names many partitions, so their failures are part of the answers instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from metadata.view import ClusterView
from raftlog import wire
from raftlog.api.cluster import HealthInfo, RollCheck
from raftlog.model import BrokerId, ProducerEpoch, ProducerId
from raftlog.ports import Part
from raftlog.security.principals import Caller

from .access import AccessService
from .audit import AuditService
from .explain import ExplainService
from .groups import GroupService
from .instances import InstanceService
from .leases import LeaseService
from .metrics import MetricsService
from .moves import MoveService
from .plots import PlotService
from .quorum import QuorumService
from .scrubs import ScrubService
from .security import SecurityService
from .topics import TopicService
from .transactions import TransactionService


class PartitionService(Protocol):
    """The partitions of the cluster for one caller. Any node takes any request, and forwards it with its caller at
    most once to the node that decides. Partitions of a request that the caller may not use are refused (S12)."""

    async def produce(self, request: wire.ProduceRequest, batches: Sequence[memoryview]) -> wire.ProduceResponse:
        """Append one batch to each partition of the request, whichever node leads it. Waits as `acks` asks, at most
        `timeout_ms`."""
        ...

    async def fetch(self, request: wire.FetchRequest) -> tuple[wire.FetchResponse, list[Part]]:
        """Long-poll batches of many partitions. The parts are the body; each `FileRegion` must be released."""
        ...

    async def offsets(self, request: wire.OffsetsRequest) -> wire.OffsetsResponse:
        """Return offsets by position or time."""
        ...

    async def delete_records(self, request: wire.DeleteRecordsRequest) -> wire.DeleteRecordsResponse:
        """Delete the records below an offset in each partition. Waits until every in-sync replica has the deletion on
        disk, at most `timeout_ms`."""
        ...


class BrokerService(Protocol):
    """The broker as the API sees it. Any node takes any request, and forwards it at most once to the node that
    decides."""

    @property
    def node_id(self) -> BrokerId: ...

    @property
    def cluster_id(self) -> str: ...

    @property
    def knows_cluster(self) -> bool:
        """Whether the view shows this process's own registration. Before that it is stale or empty: something that it
        lacks may still exist, so no request may be refused because of it."""

    @property
    def view(self) -> ClusterView:
        """The cluster as this node knows it."""

    async def catch_up(self) -> bool:
        """Bring `view` up to date with the quorum (S7). Returns False if the quorum did not answer in time."""

    def as_caller(self, caller: Caller) -> PartitionService:
        """Return the partitions as a caller may use them."""

    async def allocate_producer_id(self, principal: str = "") -> tuple[ProducerId, ProducerEpoch]:
        """Return a producer id that is not in use, and belongs to `principal` (`AccessService.principal_of`)."""

    async def roll_check(self, node: BrokerId) -> RollCheck:
        """Return whether a node may be stopped now. Raises `InvalidRequest` (`not_found`)."""
        ...

    def health(self) -> HealthInfo: ...

    @property
    def topics(self) -> TopicService:
        """Creation, alteration and deletion of topics."""

    @property
    def moves(self) -> MoveService:
        """Reassignments, manual elections, removal of brokers."""

    @property
    def groups(self) -> GroupService:
        """Consumer groups and their offsets."""

    @property
    def instances(self) -> InstanceService:
        """HTTP consumers."""
        ...

    @property
    def leases(self) -> LeaseService:
        """Leases of ranges of records."""
        ...

    @property
    def transactions(self) -> TransactionService:
        """Transactions: records of many partitions that become visible together."""

    @property
    def explain(self) -> ExplainService:
        """Explanations of partitions, groups and transactions."""
        ...

    @property
    def scrubs(self) -> ScrubService:
        """Scrubbing of this node's replicas."""

    @property
    def access(self) -> AccessService:
        """The callers of requests, and what they may do."""
        ...

    @property
    def security(self) -> SecurityService:
        """Users, tokens, access rules and quotas."""
        ...

    @property
    def plots(self) -> PlotService:
        """The last day of the main numbers of topics, groups and nodes."""
        ...

    @property
    def recent_audit(self) -> AuditService:
        """The newest lines of this node's audit log."""
        ...

    @property
    def metrics(self) -> MetricsService:
        """The numbers of this node."""
        ...

    @property
    def quorum(self) -> QuorumService:
        """The metadata quorum and the cluster's feature level."""
