"""What the HTTP API asks of the broker behind it: the port between translating and deciding.

`http_api` imports no broker; `raftlog/broker/service.py` is the real `BrokerService` and tests bring a small one of
their own. Every call raises a `RaftlogError` whose code says whose fault it is; per-partition failures of `produce`,
`fetch` and `offsets` are in the answers instead, since one request names many partitions.
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
    """How long a node's event loop was held at a stretch, since it takes requests. Milliseconds of the wall clock, or
    of the processor time of the loop's own thread."""

    stalls: int
    """Turns of 20 ms and more."""
    worst_ms: float
    worst_processor_ms: float
    stalls_last_minute: int
    worst_ms_last_minute: float


@dataclass(frozen=True, slots=True)
class Health:
    """What a node knows about itself and the cluster. `problems` is empty when all is well, else one line each."""

    ready: bool
    """It is registered, unfenced and follows the metadata log: it can take requests."""
    problems: tuple[str, ...]
    event_loop: EventLoop | None = None
    """Not measured where it is None."""


class BrokerService(Protocol):
    """The broker as the API sees it: any node takes any request and forwards it, one hop at most, to who decides."""

    @property
    def node_id(self) -> BrokerId: ...

    @property
    def cluster_id(self) -> str: ...

    @property
    def knows_cluster(self) -> bool:
        """The view shows this process's own registration. Before, it is of the past or empty: what is not in it may
        exist all the same, so nobody may be told that it does not."""
        ...

    @property
    def view(self) -> ClusterView:
        """The cluster as this node knows it now."""
        ...

    async def catch_up(self) -> bool:
        """Bring `view` to all that the quorum has decided by now (S7). False: the quorum did not answer in time."""
        ...

    async def produce(self, request: ProduceRequest, batches: Sequence[memoryview]) -> ProduceResponse:
        """Append one batch for each of the request's partitions, wherever they are led. Waits as `acks` says, at most
        `timeout_ms`."""
        ...

    async def fetch(self, request: FetchRequest) -> tuple[FetchResponse, list[Part]]:
        """Batches of many partitions, long-polled. The parts are the body; each `FileRegion` must be released."""
        ...

    async def offsets(self, request: OffsetsRequest) -> OffsetsResponse:
        """Offsets by position or time."""
        ...

    async def delete_records(self, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        """Delete the records below an offset, partition by partition; waits until every in-sync replica has it on
        disk, at most `timeout_ms`."""
        ...

    async def allocate_producer_id(self) -> tuple[ProducerId, ProducerEpoch]:
        """A producer id that nobody else has."""
        ...

    async def change_voters(self, action: Literal["add", "remove"], node_id: int, *, plan: bool) -> VotersChange:
        """Make one node a voter of the metadata quorum, or take one voter out; with `plan` only say what would become
        of it. Returns when the voters after the change have agreed to it.

        Raises `InvalidRequest` (`not_a_voter`, `quorum_majority_at_risk`, `invalid_request`) or `RetriableError`
        (`voter_not_caught_up`, `quorum_change_in_progress`, `quorum_unavailable`, `outcome_unknown`).
        """
        ...

    async def finalize_feature_level(self, level: int | None, *, plan: bool) -> FeatureLevelChange:
        """Raise the cluster's feature level for good, to the highest that every node understands where `level` is None;
        with `plan` only say to which.

        Raises `InvalidRequest` (`unsupported_version`) naming the node that is too old, or not there, or
        `RetriableError` (`quorum_unavailable`, `outcome_unknown`).
        """
        ...

    def health(self) -> Health: ...

    @property
    def topics(self) -> TopicService:
        """Topics are made, changed and deleted."""
        ...

    @property
    def moves(self) -> MoveService:
        """Reassignments, elections by hand, brokers that go."""
        ...

    @property
    def groups(self) -> GroupService:
        """Consumer groups and their offsets."""
        ...

    @property
    def transactions(self) -> TransactionService:
        """What makes records of many partitions show together."""
        ...

    @property
    def scrubs(self) -> ScrubService:
        """Checking what lies on this node's disk."""
        ...

    async def quorum_status(self) -> QuorumStatus:
        """As the quorum's leader sees it where it can be asked, otherwise as this node does."""
        ...
