"""`Admin`: topics, cluster, quorum, offsets, reassignments, groups and transactions, over the HTTP API.

Reads go to any node, and to the next one if the answer is late. Changes are sent once: if the answer is lost, the error
is `outcome_unknown`, and only a read shows what happened. Repeating a reassignment is idempotent.

A plan is read-only. A request for several partitions is answered for each of them: look at `error`.

Each node knows the decided transactions, and the open ones only in partitions that it leads. So all nodes are asked and
their answers about one transaction are merged; nodes that did not answer are listed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal
from urllib.parse import quote

import msgspec

from raftlog.client.cluster.api import HttpApi
from raftlog.client.cluster.metadata import ClusterInfo, NodeInfo, PartitionInfo, TopicDescription, topic_path
from raftlog.client.consuming.offsets import query_offsets
from raftlog.client.groups.api import AssignedTopic, GroupApi, GroupOffsetInfo, group_path
from raftlog.client.transactions.api import NamedPosition, TransactionApi, TransactionInfo, TransactionPartition
from raftlog.config import check_topic_name
from raftlog.errors import InvalidRequest, RaftlogError, error_from_code
from raftlog.model import ProducerEpoch, ProducerId
from raftlog.transactions import TransactionKey
from raftlog.wire import TIMESTAMP_LATEST

__all__ = [
    "Admin",
    "ClusterInfo",
    "FeatureLevelFinalized",
    "GroupInfo",
    "GroupSummary",
    "HealthInfo",
    "MoveInfo",
    "NodeInfo",
    "OffsetRange",
    "PartitionDeletion",
    "PartitionError",
    "PartitionInfo",
    "PartitionOutcome",
    "PositionList",
    "QuorumInfo",
    "ReassignmentInfo",
    "ReplicaInfo",
    "SoughtOffset",
    "ThrottleInfo",
    "TopicDescription",
    "TopicSummary",
    "TransactionList",
    "VotersChange",
]

CHANGE_TIMEOUT = 15.0
ANSWER_GRACE = 6.0
"""Seconds that a node may take beyond the timeout in the request."""
SEEK_TIMEOUT = 60.0

MAX_PLANNED = 1_000
"""Partitions in one request."""

Isolation = Literal["read_committed", "read_uncommitted"]
SeekTo = Literal["earliest", "latest", "offset", "timestamp", "shift", "duration"]
MOVES_TIMEOUT = 60.0
PARTITIONS_PER_REQUEST = 1_000
REPLICAS_TIMEOUT = 5.0
ABORT_TIMEOUT = 30.0
_STATES = ("PrepareCommit", "PrepareAbort", "Ongoing", "CompleteCommit", "CompleteAbort", "Empty")
"""States, the most conclusive first: some nodes may not have seen the decision or the end of a transaction yet."""


class TopicSummary(msgspec.Struct, frozen=True):
    """One topic in a list."""

    name: str
    id: str
    partition_count: int
    replication_factor: int


class _Topics(msgspec.Struct, frozen=True):
    topics: list[TopicSummary]


async def find_topics(api: HttpApi, pattern: str | None, *, timeout: float = 5.0) -> list[TopicSummary]:
    """Return the topics as `Admin.list_topics` does."""
    path = "/v1/topics" if pattern is None else f"/v1/topics?pattern={quote(pattern, safe='')}"
    return sorted((await api.get(path, _Topics, timeout=timeout)).topics, key=lambda topic: topic.name)


class OffsetRange(msgspec.Struct, frozen=True):
    """The readable offsets of a partition: `[earliest, latest)`."""

    earliest: int
    latest: int
    leader_epoch: int = -1


class PartitionDeletion(msgspec.Struct, frozen=True):
    """The new log start offset of a partition."""

    partition: int
    log_start_offset: int


class _Deletions(msgspec.Struct, frozen=True):
    partitions: list[PartitionDeletion]


class QuorumInfo(msgspec.Struct, frozen=True):
    """The metadata quorum as one of its nodes sees it."""

    node_id: int
    leader: int
    """Node id of the leader; -1 if there is none."""
    term: int
    commit_index: int
    applied_index: int
    last_index: int
    voters: list[int]
    match_index: dict[str, int] = {}
    """Index up to which each voter's and connected observer's log matches; only the leader knows it."""
    forgetful: list[int] = []
    """Nodes whose disks lost acknowledged entries: they do not take part and must be replaced."""


class FeatureLevelFinalized(msgspec.Struct, frozen=True):
    """The outcome of raising the cluster's feature level, or, if it is not `applied`, of the plan."""

    applied: bool
    feature_level_before: int
    feature_level: int


class VotersChange(msgspec.Struct, frozen=True):
    """A change of the quorum's voters: made or, if it is not `applied`, planned."""

    applied: bool
    voters_before: list[int]
    voters: list[int]
    failures_survived_before: int
    failures_survived: int
    """Number of voters that may fail at the same time."""
    index: int | None = None
    """Metadata index of the change; None if there was nothing to change."""


class HealthInfo(msgspec.Struct, frozen=True):
    """A node's report on itself and the cluster; `problems` is empty if all is well."""

    ready: bool
    problems: list[str] = []


class ReassignmentInfo(msgspec.Struct, frozen=True):
    """A partition that is being moved or is queued for it."""

    topic: str
    partition: int
    replicas: list[int]
    target_replicas: list[int]
    adding_replicas: list[int] = []
    removing_replicas: list[int] = []
    isr: list[int] = []
    leader: int | None = None
    moving: bool = False
    """False while it is queued."""


class ThrottleInfo(
    msgspec.Struct,
    frozen=True,
    rename={
        "leader_rate": "leader.replication.throttled.rate",
        "follower_rate": "follower.replication.throttled.rate",
    },
):
    """Limits for reassignment traffic, in bytes per second per broker; None: unlimited."""

    leader_rate: int | None = None
    """Limit of what a broker sends, to all receivers together."""
    follower_rate: int | None = None
    """Limit of what a broker receives, from all senders together."""


class MoveInfo(msgspec.Struct, frozen=True):
    """A partition's current and planned replicas, the preferred leader first."""

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
    """The reason why one partition of a request was refused."""

    code: str
    detail: str
    retriable: bool = False

    def error(self) -> RaftlogError:
        """Return it as an exception."""
        return error_from_code(self.code, self.detail)


class PartitionOutcome(msgspec.Struct, frozen=True):
    """The outcome of one partition of a request; `error` is None if it succeeded."""

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


class GroupSummary(msgspec.Struct, frozen=True):
    """One group in a list."""

    group: str
    state: str
    assignor: str
    member_count: int


class GroupMemberInfo(msgspec.Struct, frozen=True):
    """A group member with its assigned partitions, those that it must release, and its target assignment."""

    member_id: str
    instance_id: str
    client_id: str
    host: str
    incarnation: int
    generation: int
    topics: list[str]
    pattern: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    assigned: list[AssignedTopic]
    revoking: list[AssignedTopic]
    target: list[AssignedTopic]


class GroupInfo(msgspec.Struct, frozen=True):
    """A group with its members."""

    group: str
    state: str
    assignor: str
    epoch: int
    target_epoch: int
    coordinator: int | None
    members: list[GroupMemberInfo]


class SoughtOffset(msgspec.Struct, frozen=True):
    """A group's previous and new (or planned) committed offset in a partition."""

    topic: str
    topic_id: str
    partition: int
    offset: int | None
    new_offset: int
    log_start_offset: int
    log_end_offset: int


class _Groups(msgspec.Struct, frozen=True):
    groups: list[GroupSummary]


class _Sought(msgspec.Struct, frozen=True):
    offsets: list[SoughtOffset]


class TransactionList(msgspec.Struct, frozen=True):
    """Transactions in progress, ordered by producer id."""

    transactions: list[TransactionInfo]
    silent_nodes: list[int] = []
    """Nodes that did not answer: open transactions in partitions that they lead are missing."""


class PositionList(msgspec.Struct, frozen=True):
    """Named positions, ordered by name."""

    positions: list[NamedPosition]
    more: bool
    """Whether the list was cut off: use a longer prefix."""


class Admin:
    """Administers a cluster.

    An admin client belongs to one event loop. `close` it, or use it with `async with`. Every call may raise a
    `RaftlogError`.
    """

    def __init__(self, bootstrap: str | Sequence[str]) -> None:
        """`bootstrap`: API addresses, `"host:port,host:port"`."""
        self._api = HttpApi(bootstrap)

    # --- Topics -------------------------------------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> TopicDescription:
        """Create a topic. `replication_factor` None: the cluster's default.

        Raises `InvalidRequest` (`topic_exists`, `invalid_topic_name`, `invalid_config`, `invalid_request`).
        """
        body: dict[str, object] = {"name": check_topic_name(name), "partitions": partitions}
        if replication_factor is not None:
            body["replication_factor"] = replication_factor
        if configs:
            body["configs"] = dict(configs)
        return await self._api.change("POST", "/v1/topics", TopicDescription, body, timeout=CHANGE_TIMEOUT)

    async def list_topics(self, pattern: str | None = None) -> list[TopicSummary]:
        """Return all topics, or those whose whole names match `pattern` (RE2), ordered by name."""
        return await find_topics(self._api, pattern)

    async def describe_topic(self, name: str) -> TopicDescription:
        """Return one topic with its partitions. Raises `InvalidRequest` (`unknown_topic`)."""
        return await self._api.get(topic_path(check_topic_name(name)), TopicDescription)

    async def delete_topic(self, name: str, *, topic_id: str = "") -> None:
        """Delete a topic with all its records.

        `topic_id`: delete this topic, but no other that has taken its name. Raises `InvalidRequest` (`unknown_topic`).
        """
        await self._api.change("DELETE", topic_path(check_topic_name(name), topic_id), None, timeout=CHANGE_TIMEOUT)

    async def alter_topic(
        self, name: str, assign: Mapping[str, str] | None = None, remove: Sequence[str] = ()
    ) -> TopicDescription:
        """Set some of a topic's settings and reset others to their defaults.

        Raises `InvalidRequest` (`invalid_config`).
        """
        body = {"set": dict(assign or {}), "remove": list(remove)}
        return await self._api.change(
            "PATCH", topic_path(check_topic_name(name)), TopicDescription, body, timeout=CHANGE_TIMEOUT
        )

    async def add_partitions(self, name: str, count: int) -> TopicDescription:
        """Grow the topic to `count` partitions in total.

        From then on, keys map to other partitions. Raises `InvalidRequest`.
        """
        path = f"{topic_path(check_topic_name(name))}/partitions"
        return await self._api.change("POST", path, TopicDescription, {"count": count}, timeout=CHANGE_TIMEOUT)

    async def delete_records(
        self,
        name: str,
        before: Mapping[int, int | Literal["latest"]],
        *,
        topic_id: str = "",
        timeout: float = CHANGE_TIMEOUT,
    ) -> list[PartitionDeletion]:
        """Delete the records below an offset, by partition; `latest`: all that consumers may read when this is called.

        Returns once every in-sync replica has it on disk, after at most `timeout` seconds. Idempotent for the same
        offsets. `topic_id`: the topic that the offsets belong to; nothing is deleted in another topic of this name.

        Raises `InvalidRequest` (`unknown_topic`, `unknown_partition`, `offset_out_of_range` beyond the high watermark)
        or `RetriableError`; some of several partitions may be done by then.
        """
        # Resolved before the first attempt: on a retry, the next node would resolve a later `latest`.
        open_ended = [partition for partition, offset in before.items() if offset == "latest"]
        latest: dict[int, int] = {}
        if open_ended:
            topic_id, latest = await self._latest_offsets(name, topic_id, open_ended)
        path = topic_path(check_topic_name(name), topic_id, below="/delete-records")
        asked = [{"partition": number, "before": latest.get(number, offset)} for number, offset in before.items()]
        body = {"partitions": asked, "timeout_ms": max(int(timeout * 1000), 1)}
        return (await self._api.change("POST", path, _Deletions, body, timeout=timeout + ANSWER_GRACE)).partitions

    async def _latest_offsets(self, name: str, topic_id: str, partitions: Sequence[int]) -> tuple[str, dict[int, int]]:
        """Return the topic's id and the last stable offset of each partition.

        Raises `InvalidRequest` (`unknown_topic`, `unknown_partition`).
        """
        path = topic_path(check_topic_name(name), topic_id)
        description = await self._api.get(path, TopicDescription)
        if topic_id not in ("", description.id):
            raise InvalidRequest("unknown_topic", f"topic {name} with the id {topic_id} was deleted")
        for partition in partitions:
            if not 0 <= partition < description.partition_count:
                raise InvalidRequest("unknown_partition", f"topic {name} has no partition {partition}")
        queries = [(partition, TIMESTAMP_LATEST) for partition in partitions]
        found = await query_offsets(self._api, description.id_bytes, queries, isolation=1)
        return description.id, {one.partition: one.offset for one in found}

    # --- Cluster ------------------------------------------------------------------------------------------------------

    async def cluster(self) -> ClusterInfo:
        """Return the nodes and the controller."""
        return await self._api.get("/v1/cluster", ClusterInfo)

    async def quorum(self) -> QuorumInfo:
        """Return the state of the metadata quorum."""
        return await self._api.get("/v1/quorum", QuorumInfo)

    async def add_voter(self, node: int, *, plan: bool = False) -> VotersChange:
        """Make an observer a voter of the metadata quorum; with `plan`, only report the outcome.

        Returns once the voters after the change have agreed to it. Raises `InvalidRequest` (`quorum_majority_at_risk`,
        `invalid_request`) or `RetriableError` (`voter_not_caught_up`, `quorum_change_in_progress`).
        """
        return await self._change_voters("add", node, plan)

    async def remove_voter(self, node: int, *, plan: bool = False) -> VotersChange:
        """Make a voter of the metadata quorum an observer; with `plan`, only report the outcome.

        Raises as `add_voter`, and `not_a_voter`.
        """
        return await self._change_voters("remove", node, plan)

    async def _change_voters(self, action: str, node: int, plan: bool) -> VotersChange:
        body = {"action": action, "node": node, "plan": plan}
        return await self._api.change("POST", "/v1/quorum/voters", VotersChange, body, timeout=CHANGE_TIMEOUT)

    async def finalize_feature_level(self, level: int | None = None, *, plan: bool = False) -> FeatureLevelFinalized:
        """Raise the cluster's feature level permanently: to `level`, or to the highest that all nodes support.

        Call it after an upgrade of all nodes. With `plan`, only report the outcome. Raises `InvalidRequest`
        (`unsupported_version`), which names a node that is too old.
        """
        body = {"level": level, "plan": plan}
        path = "/v1/cluster/feature-level"
        return await self._api.change("POST", path, FeatureLevelFinalized, body, timeout=CHANGE_TIMEOUT)

    async def health(self) -> HealthInfo:
        """Return the report of the first node that answers. Raises `RetriableError` if none does."""
        return await self._api.get("/v1/health", HealthInfo, accept=(503,))

    # --- Offsets ------------------------------------------------------------------------------------------------------

    async def offsets(self, topic: str, partition: int, *, topic_id: str = "") -> OffsetRange:
        """Return the readable offsets of one partition.

        `topic_id`: of this topic, and of no other of the same name. Raises `InvalidRequest` (`unknown_topic`,
        `unknown_partition`).
        """
        path = topic_path(check_topic_name(topic), topic_id, below=f"/partitions/{partition}/offsets")
        return await self._api.get(path, OffsetRange)

    async def offset_for_timestamp(self, topic: str, partition: int, timestamp_ms: int) -> tuple[int, int] | None:
        """Return the offset and timestamp of the first record at or after that time; None if there is none."""
        description = await self.describe_topic(topic)
        (found,) = await query_offsets(self._api, description.id_bytes, [(partition, timestamp_ms)])
        return None if found.offset < 0 else (found.offset, found.timestamp_ms)

    # --- Reassignments of replicas and leaders ------------------------------------------------------------------------

    async def list_reassignments(self) -> list[ReassignmentInfo]:
        """Return the partitions that are being moved or are queued for it."""
        return (await self._api.get("/v1/cluster/reassignments", _Reassignments)).reassignments

    async def throttle(self) -> ThrottleInfo:
        """Return the current limits for reassignment traffic."""
        return (await self._api.get("/v1/cluster/reassignments", _Reassignments)).throttle

    async def alter_reassignments(
        self, wanted: Mapping[tuple[str, int], Sequence[int] | None], *, throttle: int | None = None
    ) -> list[PartitionOutcome]:
        """Reassign replicas by (topic, partition), the preferred leader first; None cancels a reassignment.

        Returns once the changes are decided; `list_reassignments` shows what is still copying.

        `throttle`: limit in bytes per second for what any broker sends or receives for all reassignments together,
        until none is left (0: unlimited; None: unchanged). With an empty `wanted` it changes the limit of those in
        progress. Raises `InvalidRequest` (`unknown_topic`, `unknown_partition`, `no_reassignment_in_progress`).
        """
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
        """Return moves that drain these brokers or, if none is named, that balance the cluster.

        Raises `InvalidRequest` if a broker cannot be drained.
        """
        return (await self._api.post("/v1/cluster/plans", _Moves, {"drain": list(drain)}, timeout=MOVES_TIMEOUT)).moves

    async def elect_leaders(self, partitions: Sequence[tuple[str, int]]) -> list[PartitionOutcome]:
        """Move the leadership of each partition to its preferred leader, if that is in sync."""
        return await self._elect(partitions, {})

    async def elect_unclean(
        self, partitions: Sequence[tuple[str, int]], *, accept_data_loss: bool, candidate: int | None = None
    ) -> list[PartitionOutcome]:
        """Elect a live replica of each partition as its leader, although acknowledged records may be lost.

        This is the last resort for partitions that no replica can lead without loss. `candidate` None: the replica with
        the longest log. Raises `InvalidRequest` unless the loss is accepted.
        """
        if not accept_data_loss:
            raise InvalidRequest(
                "invalid_request",
                "an unclean election may lose acknowledged records: pass accept_data_loss=True to accept that",
            )
        more: dict[str, object] = {"kind": "unclean", "accept_data_loss": True}
        return await self._elect(partitions, more if candidate is None else {**more, "candidate": candidate})

    async def unregister_broker(self, broker_id: int) -> None:
        """Unregister a broker that has stopped and holds no replica. Raises `InvalidRequest` (`not_found`)."""
        await self._api.change("DELETE", f"/v1/cluster/brokers/{broker_id}", None, timeout=MOVES_TIMEOUT)

    async def replicas(self) -> dict[int, list[ReplicaInfo]]:
        """Return the replicas on each node that answers within `REPLICAS_TIMEOUT`, by node id."""
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

    # --- Groups -------------------------------------------------------------------------------------------------------

    async def list_groups(self) -> list[GroupSummary]:
        """Return all groups, ordered by name."""
        return (await self._api.get("/v1/groups", _Groups)).groups

    async def describe_group(self, group: str) -> GroupInfo:
        """Return a group with its members. Raises `InvalidRequest` (`unknown_group`)."""
        return await self._api.get(group_path(group), GroupInfo)

    async def group_offsets(self, group: str, isolation: Isolation = "read_committed") -> list[GroupOffsetInfo]:
        """Return the offsets that a group has committed and the partitions that its members own, with the lag.

        The lag counts to the last stable offset or, with `read_uncommitted`, to the high watermark. Raises
        `InvalidRequest` (`unknown_group`).
        """
        return await GroupApi(self._api, group).committed(lag=True, isolation=isolation)

    async def seek_group(
        self,
        group: str,
        to: SeekTo,
        value: int = 0,
        topics: Mapping[str, Sequence[int] | None] | None = None,
        *,
        plan: bool = False,
        isolation: Isolation = "read_committed",
    ) -> list[SoughtOffset]:
        """Change the committed offsets of a group without members; with `plan`, only return the new offsets.

        * `value`: the offset, milliseconds since 1970, a number of offsets forward (or, if negative, back), or
          milliseconds before now.
        * `topics`: by name, with partitions or None for all; None: every partition in which the group has committed. An
          offset outside a partition's log is moved to its nearest end.
        * `isolation`: what the group reads, which determines where a partition ends for it.

        Raises `InvalidRequest` (`unknown_group`, `group_not_empty`, `unknown_topic`, `unknown_partition`).
        """
        body: dict[str, Any] = {"to": to, "value": value, "plan": plan, "isolation": isolation}
        if topics is not None:
            body["topics"] = [
                {"topic": topic, "partitions": None if numbers is None else list(numbers)}
                for topic, numbers in topics.items()
            ]
        answer = await self._api.change("POST", f"{group_path(group)}/seek", _Sought, body, timeout=SEEK_TIMEOUT)
        return answer.offsets

    async def seek_group_as_planned(
        self, group: str, planned: Sequence[SoughtOffset], isolation: Isolation = "read_committed"
    ) -> list[SoughtOffset]:
        """Apply a plan of `seek_group`, if it still holds.

        Raises `InvalidRequest`: `offset_moved` if the group has committed something else since, `group_not_empty`,
        `unknown_partition`, `offset_out_of_range`. A plan of more than 1,000 partitions is applied in parts of 1,000,
        in order; if one part is refused, the parts before it remain applied.
        """
        done: list[SoughtOffset] = []
        for first in range(0, len(planned), MAX_PLANNED):
            rows = [
                {
                    "topic": one.topic,
                    "topic_id": one.topic_id,
                    "partition": one.partition,
                    "offset": one.offset,
                    "new_offset": one.new_offset,
                }
                for one in planned[first : first + MAX_PLANNED]
            ]
            body = {"to": "planned", "planned": rows, "isolation": isolation}
            path = f"{group_path(group)}/seek"
            done += (await self._api.change("POST", path, _Sought, body, timeout=SEEK_TIMEOUT)).offsets
        return done

    async def delete_group(self, group: str) -> None:
        """Delete a group with its offsets. Raises `InvalidRequest` (`unknown_group`, `group_not_empty`)."""
        await self._api.change("DELETE", group_path(group), None)

    # --- Transactions -------------------------------------------------------------------------------------------------

    async def list_transactions(self) -> TransactionList:
        """Return open transactions, and decided ones that are not visible in every partition yet."""
        nodes = (await self.cluster()).nodes
        answers = await asyncio.gather(*map(_ask, nodes))
        told = [one for answer in answers for one in answer or ()]
        silent = [node.id for node, answer in zip(nodes, answers, strict=True) if answer is None]
        return TransactionList(_merged(told), silent)

    async def describe_transaction(self, transactional_id: str) -> TransactionInfo:
        """Return the state of a named producer's transaction. Raises `InvalidRequest` (`unknown_transaction`)."""
        known = await TransactionApi(self._api).describe(transactional_id)
        found = await self.list_transactions()
        key = (known.producer_id, known.producer_epoch)
        same = [one for one in found.transactions if (one.producer_id, one.producer_epoch) == key]
        return _merged([known, *same])[0]

    async def abort_transaction(self, producer_id: int, producer_epoch: int) -> None:
        """Abort a transaction: none of it ever becomes visible, and its producer's commit will fail.

        Raises `InvalidRequest` (`transaction_committed`, `producer_fenced`: it has ended already).
        """
        key = TransactionKey(ProducerId(producer_id), ProducerEpoch(producer_epoch))
        await TransactionApi(self._api).abort([key], timeout=ABORT_TIMEOUT)

    async def position(self, name: str) -> int | None:
        """Return a named position as the quorum has it now; None if nothing was ever committed under that name."""
        return await TransactionApi(self._api).position(name)

    async def list_positions(self, prefix: str = "") -> PositionList:
        """Return up to 10,000 named positions that begin with `prefix`, by name, as the quorum has them now."""
        return PositionList(*await TransactionApi(self._api).positions(prefix))

    async def delete_position(self, name: str, value: int) -> None:
        """Delete a named position permanently: the work that it protects may then be published again.

        Idempotent if it does not exist. Raises `InvalidRequest` (`offset_moved`: it is not at `value`).
        """
        await TransactionApi(self._api).remove_position(name, value)

    # --- End ----------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        await self._api.close()

    async def __aenter__(self) -> Admin:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


async def _replicas_of(address: str) -> list[ReplicaInfo] | None:
    """Return the replicas on a node, or None if it does not answer."""
    api = HttpApi(address)
    try:
        return (await api.get("/v1/replicas", _Replicas, timeout=REPLICAS_TIMEOUT)).replicas
    except RaftlogError:
        return None
    finally:
        await api.close()


async def _ask(node: NodeInfo) -> list[TransactionInfo] | None:
    """Return the transactions that one node knows, or None if it does not answer."""
    try:
        api = HttpApi(node.api)
    except InvalidRequest:
        return None
    try:
        return await TransactionApi(api).list()
    except RaftlogError:
        return None
    finally:
        await api.close()


def _merged(told: Iterable[TransactionInfo]) -> list[TransactionInfo]:
    by_key: dict[tuple[int, int], TransactionInfo] = {}
    for one in told:
        key = (one.producer_id, one.producer_epoch)
        known = by_key.get(key)
        by_key[key] = one if known is None else _both(known, one)
    return [by_key[key] for key in sorted(by_key)]


def _both(one: TransactionInfo, other: TransactionInfo) -> TransactionInfo:
    partitions: dict[tuple[str, int], TransactionPartition] = {}
    for place in (*one.partitions, *other.partitions):
        known = partitions.get((place.topic, place.partition))
        if known is None or known.first_offset is None:
            partitions[place.topic, place.partition] = place
    return msgspec.structs.replace(
        one,
        state=min(one.state, other.state, key=lambda state: _STATES.index(state) if state in _STATES else len(_STATES)),
        started_ms=min(_known(one.started_ms, other.started_ms), default=None),
        duration_ms=max(_known(one.duration_ms, other.duration_ms), default=None),
        partitions=[partitions[place] for place in sorted(partitions)],
    )


def _known(*numbers: int | None) -> list[int]:
    return [number for number in numbers if number is not None]
