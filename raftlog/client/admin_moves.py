"""`Admin`'s half about moving replicas and leaderships: plans, reassignments, elections by hand, brokers that go.

A plan is a question and changes nothing. What is asked of several partitions is answered for each: look at `error`.
Where an answer is lost the error is `outcome_unknown`; asking for the same again does no harm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from raftlog.config import check_topic_name
from raftlog.errors import InvalidRequest, RaftlogError, error_from_code

from .api import HttpApi
from .metadata import ClusterInfo

MOVES_TIMEOUT = 60.0
PARTITIONS_PER_REQUEST = 1_000
REPLICAS_TIMEOUT = 5.0


class ReassignmentInfo(msgspec.Struct, frozen=True):
    """A partition that is being moved, or waits for it."""

    topic: str
    partition: int
    replicas: list[int]
    target_replicas: list[int]
    adding_replicas: list[int] = []
    removing_replicas: list[int] = []
    isr: list[int] = []
    leader: int | None = None
    moving: bool = False
    """False: it waits for its turn."""


class ThrottleInfo(
    msgspec.Struct,
    frozen=True,
    rename={
        "leader_rate": "leader.replication.throttled.rate",
        "follower_rate": "follower.replication.throttled.rate",
    },
):
    """How fast moves copy, in bytes a second for each broker; None: as fast as they can."""

    leader_rate: int | None = None
    """What a broker sends at most, to all receivers together."""
    follower_rate: int | None = None
    """What a broker receives at most, from all senders together."""


class MoveInfo(msgspec.Struct, frozen=True):
    """A partition's replicas as they are and as a plan wants them, the preferred leader first."""

    topic: str
    partition: int
    replicas: list[int]
    target_replicas: list[int]
    leader: int | None = None

    @property
    def adding(self) -> list[int]:
        """Brokers that would receive a copy."""
        return [broker for broker in self.target_replicas if broker not in self.replicas]


class PartitionError(msgspec.Struct, frozen=True):
    """Why one partition of a request was refused."""

    code: str
    detail: str
    retriable: bool = False

    def error(self) -> RaftlogError:
        """As an exception."""
        return error_from_code(self.code, self.detail)


class PartitionOutcome(msgspec.Struct, frozen=True):
    """What became of one partition of a request; `error` is None where it was carried out."""

    topic: str
    partition: int
    error: PartitionError | None = None


class ReplicaInfo(msgspec.Struct, frozen=True):
    """One replica on one node."""

    topic: str
    partition: int
    size_bytes: int
    log_end_offset: int
    role: str


class _Reassignments(msgspec.Struct, frozen=True):
    reassignments: list[ReassignmentInfo]
    throttle: ThrottleInfo = ThrottleInfo()


class _Moves(msgspec.Struct, frozen=True):
    moves: list[MoveInfo]


class _Outcomes(msgspec.Struct, frozen=True):
    partitions: list[PartitionOutcome]


class _Replicas(msgspec.Struct, frozen=True):
    replicas: list[ReplicaInfo]


class AdminMoves:
    """What `Admin` can do about where things are. Every call raises a `RaftlogError`."""

    _api: HttpApi

    async def list_reassignments(self) -> list[ReassignmentInfo]:
        """Partitions that are being moved or wait for it."""
        return (await self._api.get("/v1/cluster/reassignments", _Reassignments)).reassignments

    async def throttle(self) -> ThrottleInfo:
        """How fast moves copy now."""
        return (await self._api.get("/v1/cluster/reassignments", _Reassignments)).throttle

    async def alter_reassignments(
        self, wanted: Mapping[tuple[str, int], Sequence[int] | None], *, throttle: int | None = None
    ) -> list[PartitionOutcome]:
        """Ask for replicas by (topic, partition), the preferred leader first; None cancels. Returns at the decision:
        `list_reassignments` shows what still is under way.

        `throttle`: bytes a second that any broker sends or receives for all moves together from now on, until none is
        left (0: as fast as they can; None: as it is). With nothing wanted it changes what is under way. Raises
        `InvalidRequest` (`unknown_topic`, `unknown_partition`, `no_reassignment_in_progress`)."""
        asked = [
            {"topic": check_topic_name(topic), "partition": partition, "replicas": None if to is None else list(to)}
            for (topic, partition), to in wanted.items()
        ]
        outcomes: list[PartitionOutcome] = []
        rates = {} if throttle is None else {"throttle": ThrottleInfo(throttle or None, throttle or None)}
        for start in range(0, max(1, len(asked)), PARTITIONS_PER_REQUEST):
            body = {"reassignments": asked[start : start + PARTITIONS_PER_REQUEST], **rates}
            outcomes += await self._outcomes("/v1/cluster/reassignments", body)
        return outcomes

    async def plan_moves(self, drain: Sequence[int] = ()) -> list[MoveInfo]:
        """Moves that empty these brokers; with none named, moves that balance the cluster. Raises `InvalidRequest` for
        what cannot be drained."""
        return (await self._api.post("/v1/cluster/plans", _Moves, {"drain": list(drain)}, timeout=MOVES_TIMEOUT)).moves

    async def elect_leaders(self, partitions: Sequence[tuple[str, int]]) -> list[PartitionOutcome]:
        """Give each to its preferred leader, where that is in sync."""
        return await self._elect(partitions, {})

    async def elect_unclean(
        self, partitions: Sequence[tuple[str, int]], *, accept_data_loss: bool, candidate: int | None = None
    ) -> list[PartitionOutcome]:
        """Make a live replica the leader of each, although acknowledged records may be lost: the last resort for
        partitions that nobody can lead without loss. `candidate` None: whoever reported most. Raises `InvalidRequest`
        unless the loss is accepted."""
        if not accept_data_loss:
            raise InvalidRequest("invalid_request", "an unclean election may lose acknowledged records: accept it")
        more: dict[str, object] = {"kind": "unclean", "accept_data_loss": True}
        return await self._elect(partitions, more if candidate is None else {**more, "candidate": candidate})

    async def unregister_broker(self, broker_id: int) -> None:
        """Forget a broker that stopped and holds no replica. Raises `InvalidRequest` (`not_found`)."""
        await self._api.change("DELETE", f"/v1/cluster/brokers/{broker_id}", None, timeout=MOVES_TIMEOUT)

    async def replicas(self) -> dict[int, list[ReplicaInfo]]:
        """What each node that answers within seconds holds, by node."""
        nodes = (await self._api.get("/v1/cluster", ClusterInfo)).nodes
        found = await asyncio.gather(*(_replicas_of(node.api) for node in nodes))
        return {node.id: held for node, held in zip(nodes, found, strict=True) if held is not None}

    async def _elect(self, partitions: Sequence[tuple[str, int]], more: Mapping[str, object]) -> list[PartitionOutcome]:
        asked = [{"topic": check_topic_name(topic), "partition": partition} for topic, partition in partitions]
        outcomes: list[PartitionOutcome] = []
        for start in range(0, len(asked), PARTITIONS_PER_REQUEST):
            body = {"partitions": asked[start : start + PARTITIONS_PER_REQUEST], **more}
            outcomes += await self._outcomes("/v1/cluster/elections", body)
        return outcomes

    async def _outcomes(self, path: str, body: Mapping[str, object]) -> list[PartitionOutcome]:
        return (await self._api.change("POST", path, _Outcomes, body, timeout=MOVES_TIMEOUT)).partitions


async def _replicas_of(address: str) -> list[ReplicaInfo] | None:
    """None where the node does not answer."""
    api = HttpApi(address)
    try:
        return (await api.get("/v1/replicas", _Replicas, timeout=REPLICAS_TIMEOUT)).replicas
    except RaftlogError:
        return None
    finally:
        await api.close()
