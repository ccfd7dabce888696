"""`Admin`: topics, cluster, quorum, offsets, reassignments, groups, transactions and security, over the HTTP API.

Reads go to any node, and to the next one if the answer is late. Changes are sent once: if the answer is lost, the error
is `outcome_unknown`, and only a read shows what happened. Repeating a reassignment is idempotent.

Plans change nothing. A request for several partitions has an answer for each of them: check its `error`.

Each node knows the decided transactions, and the open ones only in partitions that it leads. So all nodes are asked and
their answers about one transaction are merged; nodes that did not answer are listed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal, TypeVar, Unpack
from urllib.parse import quote, urlencode

import msgspec

from raftlog.api.cluster import ClusterInfo, FeatureLevelFinalized, FinalizeFeatureLevel, HealthInfo, RollCheck
from raftlog.api.explain import Explanation
from raftlog.api.groups import (
    DeletedOffsets,
    DeleteOffsets,
    GroupInfo,
    GroupOffsetInfo,
    GroupOffsets,
    Groups,
    GroupSummary,
    PlannedOffset,
    SeekGroup,
    SeekTopic,
    SoughtGroup,
    SoughtOffset,
)
from raftlog.api.moves import (
    AlterReassignments,
    Elect,
    MoveInfo,
    NamedPartition,
    PartitionOutcome,
    PartitionOutcomes,
    Plan,
    PlannedMoves,
    Reassignment,
    ReassignmentInfo,
    Reassignments,
    ReplicaInfo,
    Replicas,
    Throttle,
    ThrottleInfo,
)
from raftlog.api.problems import PartitionError
from raftlog.api.quorum import ChangeVoters, QuorumInfo, VotersChange
from raftlog.api.records import OffsetRange
from raftlog.api.security import (
    Acl,
    AclDecision,
    Acls,
    AlterUser,
    CheckAcl,
    CreateAcls,
    CreatedToken,
    CreateToken,
    CreateUser,
    DeleteAcls,
    Identity,
    QuotaFields,
    QuotaInfo,
    Quotas,
    TokenInfo,
    Tokens,
    UserInfo,
    Users,
)
from raftlog.api.topics import (
    AddPartitions,
    AlterTopic,
    CreateTopic,
    DeleteBefore,
    DeletedRecords,
    DeleteRecords,
    PartitionDeletion,
    TopicDescription,
    Topics,
    TopicSummary,
)
from raftlog.api.transactions import PositionList, TransactionInfo, TransactionPartition, Transactions
from raftlog.client.cluster.api import CHANGE_TIMEOUT, READ_TIMEOUT, HttpApi, in_parts
from raftlog.client.cluster.connection_security import ConnectionSecurity, blames_credential
from raftlog.client.cluster.metadata import check_partition, topic_path
from raftlog.client.consuming.offsets import query_offsets, request_offsets
from raftlog.client.groups.api import group_path
from raftlog.client.keywords import AdminKeywords
from raftlog.client.settings import READ_COMMITTED, AdminSettings, takes
from raftlog.client.times import Seconds, in_milliseconds, milliseconds_of, seconds_of
from raftlog.client.transactions.api import HEDGE_AFTER, TransactionApi
from raftlog.config import check_topic_name
from raftlog.errors import InvalidRequest, RaftlogError
from raftlog.security.secrets import Secret
from raftlog.wire import TIMESTAMP_EARLIEST, TIMESTAMP_LATEST, OffsetQuery

ANSWER_GRACE = 6.0
"""Seconds that a node may take beyond the timeout in the request."""
SEEK_TIMEOUT = 60.0
MAX_TIMEOUT = 86_400.0

T = TypeVar("T")

Isolation = Literal["read_committed", "read_uncommitted"]
SeekTo = Literal["earliest", "latest", "offset", "timestamp", "shift", "duration"]
MOVES_TIMEOUT = 60.0
PARTITIONS_PER_REQUEST = 1_000
"""Partitions in one request to move, elect or seek."""
REPLICAS_TIMEOUT = 5.0
TRANSACTIONS_TIMEOUT = 10.0
SECURITY_TIMEOUT = 60.0
"""Seconds for the quorum's decision, and for a password to be hashed."""
ABORT_TIMEOUT = 30.0
_STATES = ("PrepareCommit", "PrepareAbort", "Ongoing", "CompleteCommit", "CompleteAbort", "Empty")
"""States, the most conclusive first: some nodes may not have seen the decision or the end of a transaction yet."""


async def find_topics(api: HttpApi, pattern: str | None, *, timeout: float = 5.0) -> list[TopicSummary]:
    """Return the topics as `Admin.list_topics` does."""
    path = "/v1/topics" if pattern is None else f"/v1/topics?pattern={quote(pattern, safe='')}"
    return sorted((await api.get(path, Topics, timeout=timeout)).topics, key=lambda topic: topic.name)


class TransactionList(msgspec.Struct, frozen=True):
    """Transactions in progress, ordered by producer id."""

    transactions: list[TransactionInfo]
    silent_nodes: list[int] = []
    """Nodes that did not answer: open transactions in partitions that they lead are missing."""


class PartitionOffset(msgspec.Struct, frozen=True, omit_defaults=True):
    """One offset of a partition; None if there is no record at or after the given time."""

    partition: int
    offset: int | None = None
    timestamp_ms: int | None = None
    """Time of that record; None if it was not looked up by a time."""
    leader_epoch: int = -1
    error: PartitionError | None = None


class Admin:
    """Administers a cluster.

    An admin client belongs to one event loop. `close` it, or use it with `async with`. Every call may raise a
    `RaftlogError`.
    """

    @takes(AdminSettings)
    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        timeout: Seconds | None = None,
        settings: AdminSettings | None = None,
        **keywords: Unpack[AdminKeywords],
    ) -> None:
        """Configure the client; nothing is connected yet.

        `bootstrap`: API addresses, `"host:port,host:port"`, or `"https://host:port"` if the API uses TLS. The keywords
        are the fields of `AdminSettings`; they replace those of `settings`.

        `timeout`: longest wait of each call for the cluster, in seconds; None: 5 s for most reads, 15 s for changes,
        more for what takes long. After a change, `outcome_unknown` means that it may have been made.

        Raises `InvalidRequest`.
        """
        timeout = None if timeout is None else seconds_of(timeout)
        if timeout is not None and not 0 < timeout <= MAX_TIMEOUT:
            raise InvalidRequest("invalid_config", f"timeout must be between 0 and {MAX_TIMEOUT} s, not {timeout!r}")
        security = ConnectionSecurity(AdminSettings.of(settings, keywords))
        self._api = HttpApi(bootstrap, security, request_timeout=timeout)

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
        body = CreateTopic(check_topic_name(name), partitions, replication_factor, dict(configs or {}))
        return await self._api.change("POST", "/v1/topics", TopicDescription, body)

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
        await self._api.change("DELETE", topic_path(check_topic_name(name), topic_id), None)

    async def alter_topic(
        self, name: str, assign: Mapping[str, str] | None = None, remove: Sequence[str] = ()
    ) -> TopicDescription:
        """Set some of a topic's settings and reset others to their defaults.

        Raises `InvalidRequest` (`invalid_config`).
        """
        body = AlterTopic(dict(assign or {}), list(remove))
        return await self._api.change("PATCH", topic_path(check_topic_name(name)), TopicDescription, body)

    async def add_partitions(self, name: str, count: int) -> TopicDescription:
        """Grow the topic to `count` partitions in total.

        From then on, keys map to other partitions. Raises `InvalidRequest`.
        """
        path = f"{topic_path(check_topic_name(name))}/partitions"
        return await self._api.change("POST", path, TopicDescription, AddPartitions(count))

    async def delete_records(
        self,
        name: str,
        before: Mapping[int, int | Literal["latest"]],
        *,
        topic_id: str = "",
        timeout: Seconds = CHANGE_TIMEOUT,
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
        asked = [DeleteBefore(number, latest.get(number, offset)) for number, offset in before.items()]
        timeout = seconds_of(timeout)
        body = DeleteRecords(asked, max(int(timeout * 1000), 1))
        return (await self._api.change("POST", path, DeletedRecords, body, timeout=timeout + ANSWER_GRACE)).partitions

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
        return await self._change_voters(ChangeVoters("add", node, plan))

    async def remove_voter(self, node: int, *, plan: bool = False) -> VotersChange:
        """Make a voter of the metadata quorum an observer; with `plan`, only report the outcome.

        Raises as `add_voter`, and `not_a_voter`.
        """
        return await self._change_voters(ChangeVoters("remove", node, plan))

    async def _change_voters(self, body: ChangeVoters) -> VotersChange:
        return await self._api.change("POST", "/v1/quorum/voters", VotersChange, body)

    async def finalize_feature_level(self, level: int | None = None, *, plan: bool = False) -> FeatureLevelFinalized:
        """Raise the cluster's feature level permanently: to `level`, or to the highest that all nodes support.

        Call it after an upgrade of all nodes. With `plan`, only report the outcome. Raises `InvalidRequest`
        (`unsupported_version`), which names a node that is too old.
        """
        body, path = FinalizeFeatureLevel(level, plan), "/v1/cluster/feature-level"
        return await self._api.change("POST", path, FeatureLevelFinalized, body)

    async def roll_check(self, node: int) -> RollCheck:
        """Return whether a node may be stopped now without loss of availability, for rolling restarts.

        Raises `InvalidRequest` (`not_found`).
        """
        return await self._api.get(f"/v1/cluster/brokers/{node}/roll-check", RollCheck)

    async def health(self) -> HealthInfo:
        """Return the report of the first node that answers. Raises `RetriableError` if none does."""
        return await self._api.get("/v1/health", HealthInfo, accept=(503,))

    # --- Offsets ------------------------------------------------------------------------------------------------------

    async def offsets(self, topic: str, partition: int, *, topic_id: str = "") -> OffsetRange:
        """Return the readable offsets of one partition.

        `topic_id`: only of this topic, never of another one of the same name. Raises `InvalidRequest` (`unknown_topic`,
        `unknown_partition`).
        """
        path = topic_path(check_topic_name(topic), topic_id, below=f"/partitions/{partition}/offsets")
        return await self._api.get(path, OffsetRange)

    async def topic_offsets(
        self, topic: str, partitions: Iterable[int] | None = None, *, isolation: Isolation = "read_committed"
    ) -> dict[int, OffsetRange]:
        """Return the readable offsets of several partitions, by default of all, a thousand lookups in a request.

        Raises `InvalidRequest` (`unknown_topic`, `unknown_partition`), and the error of the first partition without an
        answer.
        """
        description, wanted = await self._partitions_of(topic, partitions)
        asked = [(one, time) for one in wanted for time in (TIMESTAMP_EARLIEST, TIMESTAMP_LATEST)]
        found = await query_offsets(self._api, description.id_bytes, asked, int(isolation == READ_COMMITTED))
        epochs = {one.partition: one.leader_epoch for one in description.partitions}
        pairs = zip(found[::2], found[1::2], strict=True)
        return {one.partition: OffsetRange(one.offset, end.offset, epochs[one.partition]) for one, end in pairs}

    async def list_offsets(
        self,
        topic: str,
        at: Literal["earliest", "latest"] | int = "latest",
        partitions: Sequence[int] | None = None,
        *,
        topic_id: str = "",
        isolation: Isolation = "read_committed",
    ) -> list[PartitionOffset]:
        """Return one offset of each partition: its first, its end, or that of the first record at or after a time.

        `at`: a time in milliseconds since 1970. `partitions` None: all. With `read_committed` a partition ends at its
        last stable offset. A partition that cannot answer has an error of its own, which `topic_offsets` would raise.
        Raises `InvalidRequest` (`unknown_topic`, `unknown_partition`).
        """
        description, wanted = await self._partitions_of(topic, partitions, topic_id)
        time = {"earliest": TIMESTAMP_EARLIEST, "latest": TIMESTAMP_LATEST}[at] if isinstance(at, str) else at
        queries = [OffsetQuery(description.id_bytes, partition, time) for partition in wanted]
        found: list[PartitionOffset] = []
        for one in await request_offsets(self._api, queries, int(isolation == READ_COMMITTED), timeout=READ_TIMEOUT):
            error = PartitionError(one.error, one.detail) if one.error else None
            offset = None if one.offset < 0 else one.offset
            stamp = None if one.timestamp_ms < 0 else one.timestamp_ms
            found.append(PartitionOffset(one.partition, offset, stamp, one.leader_epoch, error))
        return found

    async def offset_for_timestamp(
        self, topic: str, partition: int, timestamp_ms: int | datetime
    ) -> tuple[int, int] | None:
        """Return the offset and timestamp of the first record at or after that time; None if there is none."""
        return (await self.offsets_for_timestamps(topic, {partition: timestamp_ms}))[partition]

    async def offsets_for_timestamps(
        self, topic: str, timestamps: Mapping[int, int | datetime] | int | datetime
    ) -> dict[int, tuple[int, int] | None]:
        """Return the offset and timestamp of the first record at or after a time, by partition; None if there is none.

        `timestamps`: by partition, or one for all partitions, in milliseconds since 1970 or as `datetime` with a time
        zone. Raises as `topic_offsets` does.
        """
        named = timestamps.keys() if isinstance(timestamps, Mapping) else None
        description, wanted = await self._partitions_of(topic, named)
        times = timestamps if isinstance(timestamps, Mapping) else dict.fromkeys(wanted, timestamps)
        asked = [(one, milliseconds_of(at) if isinstance(at, datetime) else at) for one, at in times.items()]
        found = await query_offsets(self._api, description.id_bytes, asked)
        return {one.partition: None if one.offset < 0 else (one.offset, one.timestamp_ms) for one in found}

    async def _partitions_of(
        self, topic: str, partitions: Iterable[int] | None, topic_id: str = ""
    ) -> tuple[TopicDescription, list[int]]:
        description = await self._api.get(topic_path(check_topic_name(topic), topic_id), TopicDescription)
        count = description.partition_count
        wanted = list(range(count) if partitions is None else dict.fromkeys(partitions))
        for partition in wanted:
            check_partition(topic, partition, count)
        return description, wanted

    # --- Reassignments of replicas and leaders ------------------------------------------------------------------------

    async def list_reassignments(self) -> list[ReassignmentInfo]:
        """Return the partitions that are being moved or are queued for a move."""
        return (await self._api.get("/v1/cluster/reassignments", Reassignments)).reassignments

    async def throttle(self) -> ThrottleInfo:
        """Return the current limits for reassignment traffic."""
        return (await self._api.get("/v1/cluster/reassignments", Reassignments)).throttle

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
            Reassignment(check_topic_name(topic), partition, None if to is None else list(to))
            for (topic, partition), to in wanted.items()
        ]
        rates = None if throttle is None else Throttle(throttle or None, throttle or None)
        parts = in_parts(asked, PARTITIONS_PER_REQUEST) or [[]]
        return await self._outcomes("/v1/cluster/reassignments", [AlterReassignments(part, rates) for part in parts])

    async def plan_moves(self, drain: Sequence[int] = ()) -> list[MoveInfo]:
        """Return moves that drain these brokers or, if none is named, that balance the cluster.

        Raises `InvalidRequest` if a broker cannot be drained.
        """
        return (await self._api.post("/v1/cluster/plans", PlannedMoves, Plan(list(drain)), timeout=MOVES_TIMEOUT)).moves

    async def elect_leaders(self, partitions: Sequence[tuple[str, int]]) -> list[PartitionOutcome]:
        """Move the leadership of each partition to its preferred leader, if that is in sync."""
        return await self._outcomes("/v1/cluster/elections", [Elect(part) for part in _named(partitions)])

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
        asked = [Elect(part, "unclean", candidate, accept_data_loss) for part in _named(partitions)]
        return await self._outcomes("/v1/cluster/elections", asked)

    async def unregister_broker(self, broker_id: int) -> None:
        """Unregister a broker that has stopped and holds no replica. Raises `InvalidRequest` (`not_found`)."""
        await self._api.change("DELETE", f"/v1/cluster/brokers/{broker_id}", None, timeout=MOVES_TIMEOUT)

    async def replicas(self) -> dict[int, list[ReplicaInfo]]:
        """Return the replicas on each node that answers within `REPLICAS_TIMEOUT`, by node id."""
        answers = await self._ask_nodes("/v1/replicas", Replicas, REPLICAS_TIMEOUT)
        return {node_id: answer.replicas for node_id, answer in answers.items() if answer is not None}

    async def _ask_nodes(self, path: str, kind: type[T], timeout: float) -> dict[int, T | None]:
        """Return the answer of each node about itself, by node id; None if there is none.

        Raises `InvalidRequest` (`unauthenticated`, `authorization_failed`).
        """
        nodes = (await self.cluster()).nodes
        answers = await asyncio.gather(*(self._ask_node(node.api, path, kind, timeout) for node in nodes))
        return {node.id: answer for node, answer in zip(nodes, answers, strict=True)}

    async def _ask_node(self, address: str, path: str, kind: type[T], timeout: float) -> T | None:
        try:
            async with self._api.of(address) as api:
                return await api.get(path, kind, timeout=timeout)
        except RaftlogError as error:
            if blames_credential(error):
                raise
            return None

    async def _outcomes(self, path: str, bodies: Iterable[AlterReassignments | Elect]) -> list[PartitionOutcome]:
        """Send the requests one after the other."""
        answers = [await self._api.change("POST", path, PartitionOutcomes, it, timeout=MOVES_TIMEOUT) for it in bodies]
        return [outcome for answer in answers for outcome in answer.partitions]

    # --- Groups -------------------------------------------------------------------------------------------------------

    async def list_groups(self) -> list[GroupSummary]:
        """Return all groups, ordered by name."""
        return (await self._api.get("/v1/groups", Groups)).groups

    async def explain_partition(
        self, topic: str, partition: int, *, offset: int | None = None, principal: str = ""
    ) -> Explanation:
        """Explain why a partition is in its state: the root cause first, remedies, the timeline, and the consequences
        of each node's death.

        `offset`: explains as well where the record at this offset lies on each replica. `principal`: explains as well
        what this principal (`User:NAME`) may do there, and the rule that decides. Raises `InvalidRequest`
        (`unknown_topic`, `unknown_partition`).
        """
        query: dict[str, str | int] = {} if offset is None else {"offset": offset}
        path = f"/v1/explain/topics/{quote(check_topic_name(topic), safe='')}/partitions/{partition}"
        return await self._api.get(_with_query(path, query, principal), Explanation)

    async def explain_group(self, group: str, *, principal: str = "") -> Explanation:
        """Explain why the members of a group do, or do not, get records. `principal`: as in `explain_partition`. Raises
        `InvalidRequest` (`unknown_group`)."""
        path = f"/v1/explain/groups/{quote(group, safe='')}"
        return await self._api.get(_with_query(path, {}, principal), Explanation)

    async def explain_transaction(self, transactional_id: str) -> Explanation:
        """Explain what a transaction waits for. Raises `InvalidRequest` (`unknown_transaction`)."""
        return await self._api.get(f"/v1/explain/transactions/{quote(transactional_id, safe='')}", Explanation)

    async def describe_group(self, group: str) -> GroupInfo:
        """Return a group with its members. Raises `InvalidRequest` (`unknown_group`)."""
        return await self._api.get(group_path(group), GroupInfo)

    async def group_offsets(self, group: str, isolation: Isolation = "read_committed") -> list[GroupOffsetInfo]:
        """Return the offsets that a group has committed and the partitions that its members own, with the lag.

        The lag counts to the last stable offset or, with `read_uncommitted`, to the high watermark. Raises
        `InvalidRequest` (`unknown_group`).
        """
        path = f"{group_path(group)}/offsets?lag=true&isolation={isolation}"
        return (await self._api.get(path, GroupOffsets, timeout=READ_TIMEOUT)).offsets

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
        named = None
        if topics is not None:
            named = [SeekTopic(topic, None if some is None else list(some)) for topic, some in topics.items()]
        return await self._seek(group, SeekGroup(to, value, named, plan, isolation=isolation))

    async def seek_group_as_planned(
        self, group: str, planned: Sequence[SoughtOffset], isolation: Isolation = "read_committed"
    ) -> list[SoughtOffset]:
        """Apply a plan of `seek_group`, if it still holds.

        Raises `InvalidRequest`: `offset_moved` if the group has committed something else since, `group_not_empty`,
        `unknown_partition`, `offset_out_of_range`. A plan of more than 1,000 partitions is applied in parts of 1,000,
        in order; if one part is refused, the parts before it remain applied.
        """
        done: list[SoughtOffset] = []
        for part in in_parts(planned, PARTITIONS_PER_REQUEST):
            rows = [PlannedOffset(one.topic, one.topic_id, one.partition, one.offset, one.new_offset) for one in part]
            done += await self._seek(group, SeekGroup("planned", planned=rows, isolation=isolation))
        return done

    async def _seek(self, group: str, body: SeekGroup) -> list[SoughtOffset]:
        path = f"{group_path(group)}/seek"
        return (await self._api.change("POST", path, SoughtGroup, body, timeout=SEEK_TIMEOUT)).offsets

    async def delete_group(self, group: str) -> None:
        """Delete a group with its offsets. Raises `InvalidRequest` (`unknown_group`, `group_not_empty`)."""
        await self._api.change("DELETE", group_path(group), None)

    async def delete_group_offsets(
        self, group: str, topics: Mapping[str, Sequence[int] | None], *, plan: bool = False
    ) -> list[GroupOffsetInfo]:
        """Delete a group's committed offsets by topic, with partitions or None for all; return what they were.

        With `plan`, only return them. Raises `InvalidRequest` (`unknown_group`, `unknown_topic`, `not_found` if there
        are none, `group_not_empty` if a member reads one of the partitions).
        """
        named = [SeekTopic(topic, None if some is None else list(some)) for topic, some in topics.items()]
        path = f"{group_path(group)}/offsets/delete"
        return (await self._api.change("POST", path, DeletedOffsets, DeleteOffsets(named, plan))).offsets

    async def remove_member(self, group: str, member_id: str, incarnation: int) -> None:
        """Remove a member from its group; its partitions move to the others.

        A consumer that is still running joins again. Raises `InvalidRequest` (`unknown_member`, `member_fenced`: it has
        joined again since).
        """
        path = f"{group_path(group)}/members/{quote(member_id, safe='')}?incarnation={incarnation}"
        await self._api.change("DELETE", path, None)

    # --- Transactions -------------------------------------------------------------------------------------------------

    async def list_transactions(self) -> TransactionList:
        """Return open transactions, and decided ones that are not visible in every partition yet."""
        answers = await self._ask_nodes("/v1/transactions", Transactions, TRANSACTIONS_TIMEOUT)
        told = [one for answer in answers.values() if answer is not None for one in answer.transactions]
        return TransactionList(_merged(told), [node_id for node_id, answer in answers.items() if answer is None])

    async def describe_transaction(self, transactional_id: str) -> TransactionInfo:
        """Return the state of a named producer's transaction. Raises `InvalidRequest` (`unknown_transaction`)."""
        path = f"/v1/transactions/{quote(transactional_id, safe='')}"
        known = await self._api.get(path, TransactionInfo, timeout=READ_TIMEOUT)
        found = await self.list_transactions()
        key = (known.producer_id, known.producer_epoch)
        same = [one for one in found.transactions if (one.producer_id, one.producer_epoch) == key]
        return _merged([known, *same])[0]

    async def abort_transaction(self, producer_id: int, producer_epoch: int) -> None:
        """Abort a transaction: none of it ever becomes visible, and its producer's commit will fail.

        Raises `InvalidRequest` (`transaction_committed`, `producer_fenced`: it has ended already).
        """
        key = {"producer_id": producer_id, "producer_epoch": producer_epoch}
        path, body = "/v1/transactions/abort", {"transactions": [key]}
        await self._api.repeatable("POST", path, body=body, timeout=ABORT_TIMEOUT, hedge_after=HEDGE_AFTER)

    async def position(self, name: str) -> int | None:
        """Return a named position as the quorum has it now; None if nothing was ever committed under that name."""
        return await TransactionApi(self._api).position(name)

    async def list_positions(self, prefix: str = "") -> PositionList:
        """Return up to 10,000 named positions that begin with `prefix`, by name, as the quorum has them now."""
        return await self._api.get(f"/v1/positions?prefix={quote(prefix, safe='')}", PositionList, timeout=READ_TIMEOUT)

    async def delete_position(self, name: str, value: int) -> None:
        """Delete a named position permanently: the work that it protects may then be published again.

        Idempotent if it does not exist. Raises `InvalidRequest` (`offset_moved`: it is not at `value`).
        """
        await self._api.change("DELETE", f"/v1/positions/{quote(name, safe='')}?value={value}", None)

    # --- Users and their tokens ---------------------------------------------------------------------------------------

    async def identity(self) -> Identity:
        """Return the caller as a node authenticates it."""
        return await self._api.get("/v1/identity", Identity)

    async def list_users(self) -> list[UserInfo]:
        """Return all users, ordered by name."""
        return (await self._api.get("/v1/users", Users, timeout=READ_TIMEOUT)).users

    async def describe_user(self, name: str) -> UserInfo:
        """Return one user. Raises `InvalidRequest` (`unknown_user`)."""
        return await self._api.get(_user_path(name), UserInfo, timeout=READ_TIMEOUT)

    async def create_user(
        self, name: str, password: str | Secret | None = None, *, superuser: bool = False
    ) -> UserInfo:
        """Create a user; without a password it authenticates by tokens or a certificate.

        Raises `InvalidRequest` (`user_exists`, `invalid_request` for a name or a password that is not allowed).
        """
        body = CreateUser(name, _revealed(password), superuser)
        return await self._api.change("POST", "/v1/users", UserInfo, body, timeout=SECURITY_TIMEOUT)

    async def alter_user(
        self,
        name: str,
        *,
        password: str | Secret | None = None,
        remove_password: bool = False,
        superuser: bool | None = None,
    ) -> UserInfo:
        """Change a user; None leaves a value as it is. Its open connections end.

        Raises `InvalidRequest` (`unknown_user`, `user_changed` if it was changed meanwhile).
        """
        body = AlterUser(_revealed(password), remove_password, superuser)
        return await self._api.change("PATCH", _user_path(name), UserInfo, body, timeout=SECURITY_TIMEOUT)

    async def delete_user(self, name: str) -> None:
        """Delete a user with its tokens; its open connections end. Raises `InvalidRequest` (`unknown_user`)."""
        await self._api.change("DELETE", _user_path(name), None, timeout=SECURITY_TIMEOUT)

    async def list_tokens(self, user: str) -> list[TokenInfo]:
        """Return the tokens of a user, without their texts."""
        return (await self._api.get(f"{_user_path(user)}/tokens", Tokens, timeout=READ_TIMEOUT)).tokens

    async def create_token(
        self, user: str, description: str = "", *, expires_in_ms: int | timedelta | None = None
    ) -> CreatedToken:
        """Create a token of a user; None: it does not expire. Only this result has its text.

        Raises `InvalidRequest` (`unknown_user`).
        """
        expires = None if expires_in_ms is None else int(in_milliseconds(expires_in_ms))
        body = CreateToken(description, expires)
        path = f"{_user_path(user)}/tokens"
        return await self._api.change("POST", path, CreatedToken, body, timeout=SECURITY_TIMEOUT)

    async def revoke_token(self, user: str, token_id: str) -> None:
        """Revoke a token by its id; connections that use it end. Raises `InvalidRequest` (`unknown_token`)."""
        path = f"{_user_path(user)}/tokens/{quote(token_id, safe='')}"
        await self._api.change("DELETE", path, None, timeout=SECURITY_TIMEOUT)

    # --- Access rules and quotas --------------------------------------------------------------------------------------

    async def list_acls(self) -> list[Acl]:
        """Return all access rules."""
        return (await self._api.get("/v1/acls", Acls, timeout=READ_TIMEOUT)).acls

    async def create_acls(self, acls: Iterable[Acl]) -> list[Acl]:
        """Add access rules, at most 1,000, all or none; return them in canonical form. Raises `InvalidRequest`."""
        body = CreateAcls(list(acls))
        return (await self._api.change("POST", "/v1/acls", Acls, body, timeout=SECURITY_TIMEOUT)).acls

    async def delete_acls(self, wanted: DeleteAcls) -> list[Acl]:
        """Delete the access rules that match a filter, all or none; with its `dry_run` only return them."""
        return (await self._api.change("POST", "/v1/acls/delete", Acls, wanted, timeout=SECURITY_TIMEOUT)).acls

    async def check_acl(self, question: CheckAcl) -> AclDecision:
        """Return whether a principal may do something, and the rule that decides."""
        return await self._api.post("/v1/acls/check", AclDecision, question, timeout=READ_TIMEOUT)

    async def list_quotas(self) -> list[QuotaInfo]:
        """Return the quotas of all users and addresses that have any."""
        return (await self._api.get("/v1/quotas", Quotas, timeout=READ_TIMEOUT)).quotas

    async def set_quota(self, entity: str, limits: QuotaFields) -> QuotaInfo:
        """Set all limits of `User:alice`, `User:*`, `Address:10.1.2.3` or `Address:*`; absent ones are removed."""
        return await self._api.change("PUT", _quota_path(entity), QuotaInfo, limits, timeout=SECURITY_TIMEOUT)

    async def delete_quota(self, entity: str) -> None:
        """Remove the limits of a user or address."""
        await self._api.change("DELETE", _quota_path(entity), None, timeout=SECURITY_TIMEOUT)

    # --- End ----------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close all connections. Closing twice is allowed."""
        await self._api.close()

    async def __aenter__(self) -> Admin:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> None:
        await self.close()


def _user_path(name: str) -> str:
    return f"/v1/users/{quote(name, safe='')}"


def _quota_path(entity: str) -> str:
    return f"/v1/quotas/{quote(entity, safe='')}"


def _revealed(secret: str | Secret | None) -> str | None:
    return secret.reveal() if isinstance(secret, Secret) else secret


def _named(partitions: Iterable[tuple[str, int]]) -> list[list[NamedPartition]]:
    """Return the partitions in parts, one for each request."""
    named = [NamedPartition(check_topic_name(topic), partition) for topic, partition in partitions]
    return in_parts(named, PARTITIONS_PER_REQUEST)


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


def _with_query(path: str, query: Mapping[str, str | int], principal: str) -> str:
    named = {**query, **({"principal": principal} if principal else {})}
    return f"{path}?{urlencode(named)}" if named else path


def _known(*numbers: int | None) -> list[int]:
    return [number for number in numbers if number is not None]
