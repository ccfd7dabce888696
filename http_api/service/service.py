"""The broker's port: what the HTTP API needs from the broker behind it.

`http_api` imports no broker; `raftlog/broker/service.py` implements `BrokerService`, and tests bring a small fake.
Every call raises a `RaftlogError` whose code says whose fault it is; a request of `produce`, `fetch` or `offsets`
names many partitions, so their failures are part of the answers instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from metadata.view import ClusterView
from raftlog.model import (
    BrokerId,
    FeatureLevelChange,
    ProducerEpoch,
    ProducerId,
    QuorumStatus,
    VotersChange,
)
from raftlog.ports import Part
from raftlog.wire import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    FetchRequest,
    FetchResponse,
    OffsetsRequest,
    OffsetsResponse,
    ProduceRequest,
    ProduceResponse,
)

from .groups import GroupService
from .moves import MoveService
from .scrubs import ScrubService
from .topics import TopicService
from .transactions import TransactionService


@dataclass(frozen=True, slots=True)
class EventLoop:
    """The longest times that a callback blocked the node's event loop since the node started to take requests.
    Milliseconds of the wall clock, or of the processor time of the loop's own thread."""

    stalls: int
    """The number of callbacks that took 20 ms or more."""
    worst_ms: float
    worst_processor_ms: float
    stalls_last_minute: int
    worst_ms_last_minute: float


@dataclass(frozen=True, slots=True)
class Health:
    """The health of a node and of the cluster as it knows it: `problems` has one line each, and is empty if all is
    well."""

    ready: bool
    """Whether the node is registered, unfenced and follows the metadata log, and so can take requests."""
    problems: tuple[str, ...]
    event_loop: EventLoop | None = None
    """None if it is not measured."""


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
        ...

    @property
    def view(self) -> ClusterView:
        """The cluster as this node knows it."""
        ...

    async def catch_up(self) -> bool:
        """Bring `view` up to date with the quorum (S7). Returns False if the quorum did not answer in time."""
        ...

    async def produce(self, request: ProduceRequest, batches: Sequence[memoryview]) -> ProduceResponse:
        """Append one batch to each partition of the request, whichever node leads it. Waits as `acks` asks, at most
        `timeout_ms`."""
        ...

    async def fetch(self, request: FetchRequest) -> tuple[FetchResponse, list[Part]]:
        """Long-poll batches of many partitions. The parts are the body; each `FileRegion` must be released."""
        ...

    async def offsets(self, request: OffsetsRequest) -> OffsetsResponse:
        """Return offsets by position or time."""
        ...

    async def delete_records(self, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        """Delete the records below an offset in each partition. Waits until every in-sync replica has the deletion on
        disk, at most `timeout_ms`."""
        ...

    async def allocate_producer_id(self) -> tuple[ProducerId, ProducerEpoch]:
        """Return a producer id that is not in use."""
        ...

    async def change_voters(self, action: Literal["add", "remove"], node_id: int, *, plan: bool) -> VotersChange:
        """Add a node to the voters of the metadata quorum, or remove one; with `plan` only describe the outcome.
        Returns when the voters after the change have agreed to it.

        Raises `InvalidRequest` (`not_a_voter`, `quorum_majority_at_risk`, `invalid_request`) or `RetriableError`
        (`voter_not_caught_up`, `quorum_change_in_progress`, `quorum_unavailable`, `outcome_unknown`).
        """
        ...

    async def finalize_feature_level(self, level: int | None, *, plan: bool) -> FeatureLevelChange:
        """Raise the cluster's feature level permanently, to the highest that every node understands if `level` is None;
        with `plan` only return the level.

        Raises `InvalidRequest` (`unsupported_version`) with the name of the node that is too old or absent, or
        `RetriableError` (`quorum_unavailable`, `outcome_unknown`).
        """
        ...

    def health(self) -> Health: ...

    @property
    def topics(self) -> TopicService:
        """Creation, alteration and deletion of topics."""
        ...

    @property
    def moves(self) -> MoveService:
        """Reassignments, manual elections, removal of brokers."""
        ...

    @property
    def groups(self) -> GroupService:
        """Consumer groups and their offsets."""
        ...

    @property
    def transactions(self) -> TransactionService:
        """Transactions: records of many partitions that become visible together."""
        ...

    @property
    def scrubs(self) -> ScrubService:
        """Scrubbing of this node's replicas."""
        ...

    async def quorum_status(self) -> QuorumStatus:
        """Return the status that the quorum's leader reports, or this node's own if the leader cannot be reached."""
        ...
