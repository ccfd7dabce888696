"""`Admin`: topics, cluster, quorum and offsets, over the HTTP API.

Reads are asked of any node, and of the next one when the answer is late. Changes are sent once: where the answer is
lost the error is `outcome_unknown`, and looking is the only way to learn what happened.

What is *not* here: deciding anything (the cluster does that); where things are (`admin_moves.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Literal
from urllib.parse import quote

import msgspec

from raftlog.config import check_topic_name
from raftlog.errors import InvalidRequest
from raftlog.wire import TIMESTAMP_LATEST

from .admin_groups import AdminGroups, GroupInfo, GroupSummary, SoughtOffset
from .admin_moves import (
    AdminMoves,
    MoveInfo,
    PartitionError,
    PartitionOutcome,
    ReassignmentInfo,
    ReplicaInfo,
    ThrottleInfo,
)
from .admin_transactions import AdminTransactions, PositionList, TransactionList
from .api import HttpApi
from .metadata import ClusterInfo, NodeInfo, PartitionInfo, TopicDescription, topic_path
from .offsets import query_offsets

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
"""Seconds that a node may take beyond the time it was given."""


class TopicSummary(msgspec.Struct, frozen=True):
    """One topic in a list."""

    name: str
    id: str
    partition_count: int
    replication_factor: int


class _Topics(msgspec.Struct, frozen=True):
    topics: list[TopicSummary]


async def find_topics(api: HttpApi, pattern: str | None, *, timeout: float = 5.0) -> list[TopicSummary]:
    """As `Admin.list_topics`."""
    path = "/v1/topics" if pattern is None else f"/v1/topics?pattern={quote(pattern, safe='')}"
    return sorted((await api.get(path, _Topics, timeout=timeout)).topics, key=lambda topic: topic.name)


class OffsetRange(msgspec.Struct, frozen=True):
    """What a partition holds: offsets in `[earliest, latest)` may be read."""

    earliest: int
    latest: int
    leader_epoch: int = -1


class PartitionDeletion(msgspec.Struct, frozen=True):
    """Where a partition's records begin now."""

    partition: int
    log_start_offset: int


class _Deletions(msgspec.Struct, frozen=True):
    partitions: list[PartitionDeletion]


class QuorumInfo(msgspec.Struct, frozen=True):
    """The metadata quorum, as one of its nodes knows it."""

    node_id: int
    leader: int
    """-1 while there is none."""
    term: int
    commit_index: int
    applied_index: int
    last_index: int
    voters: list[int]
    match_index: dict[str, int] = {}
    """How far each voter's and each connected observer's log is known to agree; only the leader knows."""
    forgetful: list[int] = []
    """Nodes whose disks lost entries that they had acknowledged: they take no part, and have to be replaced."""


class FeatureLevelFinalized(msgspec.Struct, frozen=True):
    """What became of the cluster's feature level, or would become of it where nothing was `applied`."""

    applied: bool
    feature_level_before: int
    feature_level: int


class VotersChange(msgspec.Struct, frozen=True):
    """A change of the quorum's voters, made or (where it is not `applied`) only planned."""

    applied: bool
    voters_before: list[int]
    voters: list[int]
    failures_survived_before: int
    failures_survived: int
    """How many of the voters may fail at once."""
    index: int | None = None
    """Of the change in the metadata log; None where nothing was to be changed."""


class HealthInfo(msgspec.Struct, frozen=True):
    """What a node says of itself and of the cluster. `problems` is empty when all is well."""

    ready: bool
    problems: list[str] = []


class Admin(AdminMoves, AdminGroups, AdminTransactions):
    """Belongs to one event loop; `close` it, or use it with `async with`. Every call raises a `RaftlogError`."""

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
        """Make a topic. `replication_factor` None: the cluster's default. Raises `InvalidRequest` (`topic_exists`,
        `invalid_topic_name`, `invalid_config`, `invalid_request`)."""
        body: dict[str, object] = {"name": check_topic_name(name), "partitions": partitions}
        if replication_factor is not None:
            body["replication_factor"] = replication_factor
        if configs:
            body["configs"] = dict(configs)
        return await self._api.change("POST", "/v1/topics", TopicDescription, body, timeout=CHANGE_TIMEOUT)

    async def list_topics(self, pattern: str | None = None) -> list[TopicSummary]:
        """All topics, or those whose whole names fit `pattern` (RE2, matched by the cluster), by name."""
        return await find_topics(self._api, pattern)

    async def describe_topic(self, name: str) -> TopicDescription:
        """One topic with its partitions. Raises `InvalidRequest` (`unknown_topic`)."""
        return await self._api.get(topic_path(check_topic_name(name)), TopicDescription)

    async def delete_topic(self, name: str, *, topic_id: str = "") -> None:
        """With all its records; `topic_id`: this topic, and no other that has the name by then. Raises `InvalidRequest`
        (`unknown_topic`)."""
        await self._api.change("DELETE", topic_path(check_topic_name(name), topic_id), None, timeout=CHANGE_TIMEOUT)

    async def alter_topic(
        self, name: str, assign: Mapping[str, str] | None = None, remove: Sequence[str] = ()
    ) -> TopicDescription:
        """Set some settings, put others back to their defaults. Raises `InvalidRequest` (`invalid_config`)."""
        body = {"set": dict(assign or {}), "remove": list(remove)}
        return await self._api.change(
            "PATCH", topic_path(check_topic_name(name)), TopicDescription, body, timeout=CHANGE_TIMEOUT
        )

    async def add_partitions(self, name: str, count: int) -> TopicDescription:
        """Grow to `count` partitions. Keys go to other partitions from then on. Raises `InvalidRequest`."""
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
        Returns when every in-sync replica has it on disk, at most `timeout` seconds later; asking again for the same
        offsets changes nothing. `topic_id`: of the topic that the offsets are of; nothing is deleted in another of this
        name.

        Raises `InvalidRequest` (`unknown_topic`, `unknown_partition`, `offset_out_of_range` beyond the high watermark)
        or `RetriableError`; of several partitions some may then be done.
        """
        # Here, before the first attempt: each node that is asked would take the latest offset of its own moment.
        open_ended = [partition for partition, offset in before.items() if offset == "latest"]
        latest: dict[int, int] = {}
        if open_ended:
            topic_id, latest = await self._latest_offsets(name, topic_id, open_ended)
        path = topic_path(check_topic_name(name), topic_id, below="/delete-records")
        asked = [{"partition": number, "before": latest.get(number, offset)} for number, offset in before.items()]
        body = {"partitions": asked, "timeout_ms": max(int(timeout * 1000), 1)}
        return (await self._api.change("POST", path, _Deletions, body, timeout=timeout + ANSWER_GRACE)).partitions

    async def _latest_offsets(self, name: str, topic_id: str, partitions: Sequence[int]) -> tuple[str, dict[int, int]]:
        """The topic's id, and the last stable offset of each partition. Raises `InvalidRequest` (`unknown_topic`,
        `unknown_partition`)."""
        path = topic_path(check_topic_name(name), topic_id)
        description = await self._api.get(path, TopicDescription)
        if topic_id not in ("", description.id):
            raise InvalidRequest("unknown_topic", f"topic {name} of the id {topic_id} was deleted")
        for partition in partitions:
            if not 0 <= partition < description.partition_count:
                raise InvalidRequest("unknown_partition", f"topic {name} has no partition {partition}")
        queries = [(partition, TIMESTAMP_LATEST) for partition in partitions]
        found = await query_offsets(self._api, description.id_bytes, queries, isolation=1)
        return description.id, {one.partition: one.offset for one in found}

    # --- Cluster ------------------------------------------------------------------------------------------------------

    async def cluster(self) -> ClusterInfo:
        """Nodes and controller."""
        return await self._api.get("/v1/cluster", ClusterInfo)

    async def quorum(self) -> QuorumInfo:
        """The metadata quorum."""
        return await self._api.get("/v1/quorum", QuorumInfo)

    async def add_voter(self, node: int, *, plan: bool = False) -> VotersChange:
        """Make an observer a voter of the metadata quorum; with `plan` only say what would become of it. Returns when
        the voters after the change have agreed to it.

        Raises `InvalidRequest` (`quorum_majority_at_risk`, `invalid_request`) or `RetriableError`
        (`voter_not_caught_up`, `quorum_change_in_progress`).
        """
        return await self._change_voters("add", node, plan)

    async def remove_voter(self, node: int, *, plan: bool = False) -> VotersChange:
        """Take one voter out of the metadata quorum: it observes from then on, if it still runs. Raises as
        `add_voter`, and `not_a_voter`."""
        return await self._change_voters("remove", node, plan)

    async def _change_voters(self, action: str, node: int, plan: bool) -> VotersChange:
        body = {"action": action, "node": node, "plan": plan}
        return await self._api.change("POST", "/v1/quorum/voters", VotersChange, body, timeout=CHANGE_TIMEOUT)

    async def finalize_feature_level(self, level: int | None = None, *, plan: bool = False) -> FeatureLevelFinalized:
        """Raise the cluster's feature level for good, after an upgrade of all nodes: to the highest that they all
        understand, or to `level`. With `plan` only say what would become of it.

        Raises `InvalidRequest` (`unsupported_version`) naming a node that is too old.
        """
        body = {"level": level, "plan": plan}
        path = "/v1/cluster/feature-level"
        return await self._api.change("POST", path, FeatureLevelFinalized, body, timeout=CHANGE_TIMEOUT)

    async def health(self) -> HealthInfo:
        """What the node that answers says. Raises `RetriableError` where none does."""
        return await self._api.get("/v1/health", HealthInfo, accept=(503,))

    # --- Offsets ------------------------------------------------------------------------------------------------------

    async def offsets(self, topic: str, partition: int, *, topic_id: str = "") -> OffsetRange:
        """What one partition holds; `topic_id`: of this topic, and of no other that has the name. Raises
        `InvalidRequest` (`unknown_topic`, `unknown_partition`)."""
        path = topic_path(check_topic_name(topic), topic_id, below=f"/partitions/{partition}/offsets")
        return await self._api.get(path, OffsetRange)

    async def offset_for_timestamp(self, topic: str, partition: int, timestamp_ms: int) -> tuple[int, int] | None:
        """Offset and timestamp of the first record at or after that time; None if there is none."""
        description = await self.describe_topic(topic)
        (found,) = await query_offsets(self._api, description.id_bytes, [(partition, timestamp_ms)])
        return None if found.offset < 0 else (found.offset, found.timestamp_ms)

    async def close(self) -> None:
        await self._api.close()

    async def __aenter__(self) -> Admin:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
