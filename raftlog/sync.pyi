"""The blocking client, as type checkers see it; generated from its finished classes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from ssl import SSLContext
from typing import Any, Literal, Self

from raftlog.api.cluster import ClusterInfo, FeatureLevelFinalized, HealthInfo, RollCheck
from raftlog.api.explain import Explanation
from raftlog.api.groups import GroupInfo, GroupOffsetInfo, GroupPartition, GroupSummary, SoughtOffset
from raftlog.api.moves import MoveInfo, PartitionOutcome, ReassignmentInfo, ReplicaInfo, ThrottleInfo
from raftlog.api.quorum import QuorumInfo, VotersChange
from raftlog.api.records import OffsetRange
from raftlog.api.security import (
    Acl,
    AclDecision,
    CheckAcl,
    CreatedToken,
    DeleteAcls,
    Identity,
    QuotaFields,
    QuotaInfo,
    TokenInfo,
    UserInfo,
)
from raftlog.api.topics import PartitionDeletion, TopicDescription, TopicSummary
from raftlog.api.transactions import ConsumedOffsets, PositionList, TransactionInfo
from raftlog.client.admin import Isolation, PartitionOffset, SeekTo, TransactionList
from raftlog.client.blocking.group_consumer import Callback
from raftlog.client.consuming.records import ConsumedBatch, ConsumerRecord
from raftlog.client.credentials import Credentials
from raftlog.client.groups.consumer import CommitOffsets
from raftlog.client.producing.delivery import RecordMetadata
from raftlog.client.producing.sending import HeadersArgument
from raftlog.client.settings import AdminSettings, ConsumerSettings, GroupConsumerSettings, ProducerSettings
from raftlog.client.times import Seconds, StartTime
from raftlog.client.transactions.api import Offsets
from raftlog.client.transactions.decision import Wait
from raftlog.client.transactions.transaction import TransactionState
from raftlog.errors import RaftlogError
from raftlog.metrics.measure import Family
from raftlog.model import Acks
from raftlog.security.secrets import Secret
from raftlog.trace_context import TraceContext
from raftlog.transactions import TransactionKey
from raftlog.wire import TransactionOutput

class GroupConsumer:
    """A member of a consumer group, for one thread at a time.

    `close` it, or use it with `with`.
    """
    def __init__(
        self,
        bootstrap: str | Sequence[str],
        group: str,
        topics: Sequence[str] = (),
        *,
        pattern: str = "",
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        on_lost: Callback | None = None,
        settings: GroupConsumerSettings | None = None,
        credentials: Credentials | None = None,
        tls_authority: str | None = None,
        tls_certificate: str | None = None,
        tls_key: str | None = None,
        ssl: SSLContext | None = None,
        insecure_credentials: bool = False,
        prefetch_bytes: int = 33554432,
        isolation: str = "read_committed",
        auto_offset_reset: str = "latest",
        enable_auto_commit: bool = True,
        auto_commit_interval_ms: float | timedelta = 5000,
        session_timeout_ms: int | timedelta = 45000,
        heartbeat_interval_ms: float | timedelta = 3000,
        max_poll_interval_ms: float | timedelta = 300000,
        rebalance_timeout_ms: int | timedelta | None = None,
        instance_id: str = "",
        client_id: str = "",
        assignor: str = "uniform",
    ) -> None:
        """Configure the consumer; the first `poll` joins the group.

        `pattern` subscribes to every topic whose whole name matches (RE2), including topics created later. The
        callbacks get lists of partitions: new ones, ones about to be released, and ones that were lost. The other
        keywords are the fields of `GroupConsumerSettings`; they replace those of `settings`. Raises `InvalidRequest`.
        """
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None: ...
    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Iterate over the records without end."""
    def __next__(self) -> ConsumerRecord: ...
    @property
    def assignment(self) -> list[GroupPartition]:
        """Partitions that are assigned to this consumer and that it reads now."""
    def batches(self) -> Iterator[ConsumedBatch]:
        """Iterate over the batches without end; each counts as processed when the program requests the next one."""
    @property
    def caught_up(self) -> bool:
        """True if every assigned partition's readable end is known and the position is there.

        False while none is assigned. `lag` lacks partitions that no leader has answered for yet, so that its sum alone
        does not tell this.
        """
    def close(self, *, processed: bool = True) -> None:
        """Commit (with automatic commits), leave the group and close all connections. Closing twice is allowed.

        Without `processed`, the records of the last `poll` are not committed, so the next owner reads them again.
        `with` closes that way if its block raises.
        """
    def commit(self, offsets: CommitOffsets | None = None, *, timeout: Seconds = 15.0) -> None:
        """Commit these offsets, or all positions, and return once the quorum has decided.

        A partition is a `GroupPartition`, or `(topic, partition)` of an assigned one. The offset is that of the next
        record to read: one more than that of the last processed record.

        Raises `InvalidRequest` (`stale_generation`, `unknown_member`, `member_fenced`: a partition has another owner
        now) or `RetriableError`.
        """
    def commit_soon(
        self, offsets: CommitOffsets | None = None, done: Callable[[RaftlogError | None], None] | None = None
    ) -> None:
        """Commit without waiting.

        A later call that waits for the cluster (`poll`, `commit`, `close`, ...) calls `done` with None or the error, on
        its own thread. Raises `RetriableError` (`overloaded`) if too many commits are in flight.
        """
    def committed(self) -> dict[GroupPartition, int]:
        """Return the group's committed offsets, for all of its partitions."""
    def consumed(self) -> ConsumedOffsets:
        """Return everything that was handed out and is not committed, for `Transaction.send_offsets`.

        Automatic commits must be off. Raises `InvalidRequest` (`stale_generation`: a partition was taken away
        meanwhile; `unknown_member`).
        """
    def consumed_is_committed(self, offsets: ConsumedOffsets) -> None:
        """Record that a transaction has committed `offsets`. Thread-safe; ignored once the consumer is closed."""
    @property
    def lag(self) -> dict[GroupPartition, int]:
        """Number of offsets between position and readable end, by partition, if a leader has reported that end."""
    @property
    def metrics(self) -> list[Family]:
        """The consumer's numbers now: assigned partitions, prefetched bytes, fetches, retries, lag
        (`docs/metrics.md`).
        """
    def next_batch(self, timeout: Seconds = 1.0) -> ConsumedBatch | None:
        """Return the next batch of any assigned partition, or None after `timeout` seconds.

        The fastest way to read: columns are decoded on demand, as lists, or with `to_arrow` and `to_pandas`. The
        batches or records of the previous call count as processed. Raises as `poll` does.
        """
    def pause(self, partitions: Iterable[GroupPartition]) -> None:
        """Neither hand out nor fetch these partitions until `resume`.

        They stay assigned, with their positions; `poll` must still be called. A partition that is released is no longer
        paused when it is assigned again. Raises `InvalidRequest` if one of them is not assigned; then none is paused.
        """
    @property
    def paused(self) -> list[GroupPartition]:
        """Assigned partitions that are paused."""
    def poll(self, max_records: int = 500, timeout: Seconds = 1.0) -> list[ConsumerRecord]:
        """Return up to `max_records` records as soon as there are any, or none after `timeout` seconds.

        Callbacks, and the last commit of partitions that are released, may take longer. The records of the previous
        call count as processed. Raises `InvalidRequest` for an error that a retry cannot fix (a bad pattern, an offset
        that is no longer in the log), and `RetriableError` only if partitions were assigned and the quorum does not
        return their committed offsets.
        """
    @property
    def positions(self) -> dict[GroupPartition, int]:
        """Offset of the next record to hand out, by partition."""
    def resume(self, partitions: Iterable[GroupPartition]) -> None:
        """Continue with these partitions; ignore those that are not paused or not assigned."""
    def seek(self, topic: str, partition: int, start: StartTime) -> None:
        """Continue reading a partition at an offset, `"earliest"`, `"latest"`, a `datetime` or `"@<milliseconds>"`.

        The partition must be assigned to this consumer. Nothing is committed, and commits of offsets below the
        committed one have no effect (S8). Raises `InvalidRequest`, or `RetriableError` if the offset has to be looked
        up and no broker answers.
        """
    def seek_to_committed(self) -> None:
        """Seek all partitions back to the group's committed offsets (S7).

        A partition without a committed offset goes back to where this consumer began. Use it after an aborted
        transaction: the records that it had consumed are read again.
        """
    def shows_life(self) -> None:
        """Count as a poll: the program still consumes what an earlier `poll` returned. Thread-safe.

        The next `poll` is due `max_poll_interval_ms` after this call.
        """

class Admin:
    """Administers a cluster, from any thread.

    `close` it, or use it with `with`.
    """
    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        timeout: Seconds | None = None,
        settings: AdminSettings | None = None,
        credentials: Credentials | None = None,
        tls_authority: str | None = None,
        tls_certificate: str | None = None,
        tls_key: str | None = None,
        ssl: SSLContext | None = None,
        insecure_credentials: bool = False,
    ) -> None:
        """Configure the client; nothing is connected yet.

        `bootstrap`: API addresses, `"host:port,host:port"`, or `"https://host:port"` if the API uses TLS. The keywords
        are the fields of `AdminSettings`; they replace those of `settings`.

        `timeout`: longest wait of each call for the cluster, in seconds; None: 5 s for most reads, 15 s for changes,
        more for what takes long. After a change, `outcome_unknown` means that it may have been made.

        Raises `InvalidRequest`.
        """
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None: ...
    def abort_transaction(self, producer_id: int, producer_epoch: int) -> None:
        """Abort a transaction: none of it ever becomes visible, and its producer's commit will fail.

        Raises `InvalidRequest` (`transaction_committed`, `producer_fenced`: it has ended already).
        """
    def add_partitions(self, name: str, count: int) -> TopicDescription:
        """Grow the topic to `count` partitions in total.

        From then on, keys map to other partitions. Raises `InvalidRequest`.
        """
    def add_voter(self, node: int, *, plan: bool = False) -> VotersChange:
        """Make an observer a voter of the metadata quorum; with `plan`, only report the outcome.

        Returns once the voters after the change have agreed to it. Raises `InvalidRequest` (`quorum_majority_at_risk`,
        `invalid_request`) or `RetriableError` (`voter_not_caught_up`, `quorum_change_in_progress`).
        """
    def alter_reassignments(
        self, wanted: Mapping[tuple[str, int], Sequence[int] | None], *, throttle: int | None = None
    ) -> list[PartitionOutcome]:
        """Reassign replicas by (topic, partition), the preferred leader first; None cancels a reassignment.

        Returns once the changes are decided; `list_reassignments` shows what is still copying.

        `throttle`: limit in bytes per second for what any broker sends or receives for all reassignments together,
        until none is left (0: unlimited; None: unchanged). With an empty `wanted` it changes the limit of those in
        progress. Raises `InvalidRequest` (`unknown_topic`, `unknown_partition`, `no_reassignment_in_progress`).
        """
    def alter_topic(
        self, name: str, assign: Mapping[str, str] | None = None, remove: Sequence[str] = ()
    ) -> TopicDescription:
        """Set some of a topic's settings and reset others to their defaults.

        Raises `InvalidRequest` (`invalid_config`).
        """
    def alter_user(
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
    def check_acl(self, question: CheckAcl) -> AclDecision:
        """Return whether a principal may do something, and the rule that decides."""
    def close(self) -> None:
        """Close all connections. Closing twice is allowed."""
    def cluster(self) -> ClusterInfo:
        """Return the nodes and the controller."""
    def create_acls(self, acls: Iterable[Acl]) -> list[Acl]:
        """Add access rules, at most 1,000, all or none; return them in canonical form. Raises `InvalidRequest`."""
    def create_token(
        self, user: str, description: str = "", *, expires_in_ms: int | timedelta | None = None
    ) -> CreatedToken:
        """Create a token of a user; None: it does not expire. Only this result has its text.

        Raises `InvalidRequest` (`unknown_user`).
        """
    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> TopicDescription:
        """Create a topic. `replication_factor` None: the cluster's default.

        Raises `InvalidRequest` (`topic_exists`, `invalid_topic_name`, `invalid_config`, `invalid_request`).
        """
    def create_user(self, name: str, password: str | Secret | None = None, *, superuser: bool = False) -> UserInfo:
        """Create a user; without a password it authenticates by tokens or a certificate.

        Raises `InvalidRequest` (`user_exists`, `invalid_request` for a name or a password that is not allowed).
        """
    def delete_acls(self, wanted: DeleteAcls) -> list[Acl]:
        """Delete the access rules that match a filter, all or none; with its `dry_run` only return them."""
    def delete_group(self, group: str) -> None:
        """Delete a group with its offsets. Raises `InvalidRequest` (`unknown_group`, `group_not_empty`)."""
    def delete_group_offsets(
        self, group: str, topics: Mapping[str, Sequence[int] | None], *, plan: bool = False
    ) -> list[GroupOffsetInfo]:
        """Delete a group's committed offsets by topic, with partitions or None for all; return what they were.

        With `plan`, only return them. Raises `InvalidRequest` (`unknown_group`, `unknown_topic`, `not_found` if there
        are none, `group_not_empty` if a member reads one of the partitions).
        """
    def delete_position(self, name: str, value: int) -> None:
        """Delete a named position permanently: the work that it protects may then be published again.

        Idempotent if it does not exist. Raises `InvalidRequest` (`offset_moved`: it is not at `value`).
        """
    def delete_quota(self, entity: str) -> None:
        """Remove the limits of a user or address."""
    def delete_records(
        self, name: str, before: Mapping[int, int | Literal["latest"]], *, topic_id: str = "", timeout: Seconds = 15.0
    ) -> list[PartitionDeletion]:
        """Delete the records below an offset, by partition; `latest`: all that consumers may read when this is called.

        Returns once every in-sync replica has it on disk, after at most `timeout` seconds. Idempotent for the same
        offsets. `topic_id`: the topic that the offsets belong to; nothing is deleted in another topic of this name.

        Raises `InvalidRequest` (`unknown_topic`, `unknown_partition`, `offset_out_of_range` beyond the high watermark)
        or `RetriableError`; some of several partitions may be done by then.
        """
    def delete_topic(self, name: str, *, topic_id: str = "") -> None:
        """Delete a topic with all its records.

        `topic_id`: delete this topic, but no other that has taken its name. Raises `InvalidRequest` (`unknown_topic`).
        """
    def delete_user(self, name: str) -> None:
        """Delete a user with its tokens; its open connections end. Raises `InvalidRequest` (`unknown_user`)."""
    def describe_group(self, group: str) -> GroupInfo:
        """Return a group with its members. Raises `InvalidRequest` (`unknown_group`)."""
    def describe_topic(self, name: str) -> TopicDescription:
        """Return one topic with its partitions. Raises `InvalidRequest` (`unknown_topic`)."""
    def describe_transaction(self, transactional_id: str) -> TransactionInfo:
        """Return the state of a named producer's transaction. Raises `InvalidRequest` (`unknown_transaction`)."""
    def describe_user(self, name: str) -> UserInfo:
        """Return one user. Raises `InvalidRequest` (`unknown_user`)."""
    def elect_leaders(self, partitions: Sequence[tuple[str, int]]) -> list[PartitionOutcome]:
        """Move the leadership of each partition to its preferred leader, if that is in sync."""
    def elect_unclean(
        self, partitions: Sequence[tuple[str, int]], *, accept_data_loss: bool, candidate: int | None = None
    ) -> list[PartitionOutcome]:
        """Elect a live replica of each partition as its leader, although acknowledged records may be lost.

        This is the last resort for partitions that no replica can lead without loss. `candidate` None: the replica with
        the longest log. Raises `InvalidRequest` unless the loss is accepted.
        """
    def explain_group(self, group: str, *, principal: str = "") -> Explanation:
        """Explain why the members of a group do, or do not, get records. `principal`: as in `explain_partition`. Raises
        `InvalidRequest` (`unknown_group`).
        """
    def explain_partition(
        self, topic: str, partition: int, *, offset: int | None = None, principal: str = ""
    ) -> Explanation:
        """Explain why a partition is in its state: the root cause first, remedies, the timeline, and the consequences
        of each node's death.

        `offset`: explains as well where the record at this offset lies on each replica. `principal`: explains as well
        what this principal (`User:NAME`) may do there, and the rule that decides. Raises `InvalidRequest`
        (`unknown_topic`, `unknown_partition`).
        """
    def explain_transaction(self, transactional_id: str) -> Explanation:
        """Explain what a transaction waits for. Raises `InvalidRequest` (`unknown_transaction`)."""
    def finalize_feature_level(self, level: int | None = None, *, plan: bool = False) -> FeatureLevelFinalized:
        """Raise the cluster's feature level permanently: to `level`, or to the highest that all nodes support.

        Call it after an upgrade of all nodes. With `plan`, only report the outcome. Raises `InvalidRequest`
        (`unsupported_version`), which names a node that is too old.
        """
    def group_offsets(self, group: str, isolation: Isolation = "read_committed") -> list[GroupOffsetInfo]:
        """Return the offsets that a group has committed and the partitions that its members own, with the lag.

        The lag counts to the last stable offset or, with `read_uncommitted`, to the high watermark. Raises
        `InvalidRequest` (`unknown_group`).
        """
    def health(self) -> HealthInfo:
        """Return the report of the first node that answers. Raises `RetriableError` if none does."""
    def identity(self) -> Identity:
        """Return the caller as a node authenticates it."""
    def list_acls(self) -> list[Acl]:
        """Return all access rules."""
    def list_groups(self) -> list[GroupSummary]:
        """Return all groups, ordered by name."""
    def list_offsets(
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
    def list_positions(self, prefix: str = "") -> PositionList:
        """Return up to 10,000 named positions that begin with `prefix`, by name, as the quorum has them now."""
    def list_quotas(self) -> list[QuotaInfo]:
        """Return the quotas of all users and addresses that have any."""
    def list_reassignments(self) -> list[ReassignmentInfo]:
        """Return the partitions that are being moved or are queued for a move."""
    def list_tokens(self, user: str) -> list[TokenInfo]:
        """Return the tokens of a user, without their texts."""
    def list_topics(self, pattern: str | None = None) -> list[TopicSummary]:
        """Return all topics, or those whose whole names match `pattern` (RE2), ordered by name."""
    def list_transactions(self) -> TransactionList:
        """Return open transactions, and decided ones that are not visible in every partition yet."""
    def list_users(self) -> list[UserInfo]:
        """Return all users, ordered by name."""
    def offset_for_timestamp(self, topic: str, partition: int, timestamp_ms: int | datetime) -> tuple[int, int] | None:
        """Return the offset and timestamp of the first record at or after that time; None if there is none."""
    def offsets(self, topic: str, partition: int, *, topic_id: str = "") -> OffsetRange:
        """Return the readable offsets of one partition.

        `topic_id`: only of this topic, never of another one of the same name. Raises `InvalidRequest` (`unknown_topic`,
        `unknown_partition`).
        """
    def offsets_for_timestamps(
        self, topic: str, timestamps: Mapping[int, int | datetime] | int | datetime
    ) -> dict[int, tuple[int, int] | None]:
        """Return the offset and timestamp of the first record at or after a time, by partition; None if there is none.

        `timestamps`: by partition, or one for all partitions, in milliseconds since 1970 or as `datetime` with a time
        zone. Raises as `topic_offsets` does.
        """
    def plan_moves(self, drain: Sequence[int] = ()) -> list[MoveInfo]:
        """Return moves that drain these brokers or, if none is named, that balance the cluster.

        Raises `InvalidRequest` if a broker cannot be drained.
        """
    def position(self, name: str) -> int | None:
        """Return a named position as the quorum has it now; None if nothing was ever committed under that name."""
    def quorum(self) -> QuorumInfo:
        """Return the state of the metadata quorum."""
    def remove_member(self, group: str, member_id: str, incarnation: int) -> None:
        """Remove a member from its group; its partitions move to the others.

        A consumer that is still running joins again. Raises `InvalidRequest` (`unknown_member`, `member_fenced`: it has
        joined again since).
        """
    def remove_voter(self, node: int, *, plan: bool = False) -> VotersChange:
        """Make a voter of the metadata quorum an observer; with `plan`, only report the outcome.

        Raises as `add_voter`, and `not_a_voter`.
        """
    def replicas(self) -> dict[int, list[ReplicaInfo]]:
        """Return the replicas on each node that answers within `REPLICAS_TIMEOUT`, by node id."""
    def revoke_token(self, user: str, token_id: str) -> None:
        """Revoke a token by its id; connections that use it end. Raises `InvalidRequest` (`unknown_token`)."""
    def roll_check(self, node: int) -> RollCheck:
        """Return whether a node may be stopped now without loss of availability, for rolling restarts.

        Raises `InvalidRequest` (`not_found`).
        """
    def seek_group(
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
    def seek_group_as_planned(
        self, group: str, planned: Sequence[SoughtOffset], isolation: Isolation = "read_committed"
    ) -> list[SoughtOffset]:
        """Apply a plan of `seek_group`, if it still holds.

        Raises `InvalidRequest`: `offset_moved` if the group has committed something else since, `group_not_empty`,
        `unknown_partition`, `offset_out_of_range`. A plan of more than 1,000 partitions is applied in parts of 1,000,
        in order; if one part is refused, the parts before it remain applied.
        """
    def set_quota(self, entity: str, limits: QuotaFields) -> QuotaInfo:
        """Set all limits of `User:alice`, `User:*`, `Address:10.1.2.3` or `Address:*`; absent ones are removed."""
    def throttle(self) -> ThrottleInfo:
        """Return the current limits for reassignment traffic."""
    def topic_offsets(
        self, topic: str, partitions: Iterable[int] | None = None, *, isolation: Isolation = "read_committed"
    ) -> dict[int, OffsetRange]:
        """Return the readable offsets of several partitions, by default of all, a thousand lookups in a request.

        Raises `InvalidRequest` (`unknown_topic`, `unknown_partition`), and the error of the first partition without an
        answer.
        """
    def unregister_broker(self, broker_id: int) -> None:
        """Unregister a broker that has stopped and holds no replica. Raises `InvalidRequest` (`not_found`)."""

class Consumer:
    """Reads one topic, from one thread at a time.

    `close` it, or use it with `with`.
    """
    def __init__(
        self,
        bootstrap: str | Sequence[str],
        topic: str,
        partitions: Sequence[int] | None = None,
        start: StartTime | Mapping[int, StartTime] = "earliest",
        *,
        topic_id: str = "",
        settings: ConsumerSettings | None = None,
        credentials: Credentials | None = None,
        tls_authority: str | None = None,
        tls_certificate: str | None = None,
        tls_key: str | None = None,
        ssl: SSLContext | None = None,
        insecure_credentials: bool = False,
        prefetch_bytes: int = 33554432,
        isolation: str = "read_committed",
        max_wait_ms: int | timedelta = 500,
        min_bytes: int = 1,
        on_out_of_range: str = "error",
    ) -> None:
        """Configure the consumer; nothing is connected yet.

        * `partitions`: the partitions to read; None means all, including those added later.
        * `start`: `"earliest"`, `"latest"`, an offset, a `datetime` with a time zone or `"@<milliseconds since 1970>"`
          (the first record at or after that time), or one of these per partition.
        * `topic_id`: 32 hexadecimal digits. With it, another topic of the same name, deleted before or created after
          this one, is never read.

        The other keywords are the fields of `ConsumerSettings`; they replace those of `settings`. Raises
        `InvalidRequest`.
        """
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None: ...
    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Iterate over the records without end."""
    def __next__(self) -> ConsumerRecord: ...
    def assign(self, starts: Mapping[int, int]) -> None:
        """Read exactly these partitions.

        Partitions that are being read continue at their positions; new ones begin at the given offsets.
        """
    def batches(self) -> Iterator[ConsumedBatch]:
        """Iterate over the batches without end."""
    @property
    def caught_up(self) -> bool:
        """True if every partition's readable end is known and the position is there."""
    def close(self) -> None:
        """Close all connections. Closing twice is allowed."""
    @property
    def end_offsets(self) -> dict[int, int]:
        """End of the readable records by partition, from the leader's last answer.

        This is the last stable offset or, with `read_uncommitted`, the high watermark.
        """
    @property
    def high_watermarks(self) -> dict[int, int]:
        """High watermark by partition, from the leader's last answer."""
    @property
    def lag(self) -> dict[int, int]:
        """Number of offsets between the position and the readable end, by partition."""
    @property
    def metrics(self) -> list[Family]:
        """The consumer's numbers now: prefetched bytes, fetches, retries, lag (`docs/metrics.md`)."""
    def next_batch(self, timeout: Seconds = 1.0) -> ConsumedBatch | None:
        """Return the next batch of any partition, or None after `timeout` seconds. Raises as `poll` does."""
    def pause(self, partitions: Iterable[int]) -> None:
        """Neither hand out nor fetch these partitions until `resume`. The call is idempotent; positions are kept."""
    def poll(self, max_records: int = 500, timeout: Seconds = 1.0) -> list[ConsumerRecord]:
        """Return up to `max_records` records as soon as there are any, or none after `timeout` seconds.

        Raises `InvalidRequest` (`offset_out_of_range`, `unknown_topic`, ...) or `CorruptBatch`. After an error, the
        partition is not read any further until `seek`.
        """
    @property
    def positions(self) -> dict[int, int]:
        """Offset of the next record to hand out, by partition, if it is known already."""
    @property
    def prefetched_bytes(self) -> int:
        """Bytes that were fetched ahead of the program."""
    def resume(self, partitions: Iterable[int]) -> None:
        """Continue with these partitions."""
    def seek(self, partition: int, start: StartTime) -> None:
        """Continue reading `partition` at `start`, and clear an error that stopped it. Raises `InvalidRequest`."""
    def start(self, timeout: Seconds = 30.0) -> None:
        """Locate the topic and the start offsets.

        The other calls do so implicitly; call this to see a failure early. Raises `InvalidRequest` (`unknown_topic`,
        `unknown_partition`), or `RetriableError` after `timeout` seconds.
        """
    subscribe = GroupConsumer

class Producer:
    """Sends records to topics, from any thread.

    `close` it, or use it with `with`.
    """
    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        settings: ProducerSettings | None = None,
        credentials: Credentials | None = None,
        tls_authority: str | None = None,
        tls_certificate: str | None = None,
        tls_key: str | None = None,
        ssl: SSLContext | None = None,
        insecure_credentials: bool = False,
        acks: Acks | int | str = "all",
        compression: str = "none",
        linger_ms: float | timedelta = 5.0,
        batch_bytes: int = 262144,
        max_in_flight: int = 5,
        buffer_bytes: int = 67108864,
        delivery_timeout_ms: float | timedelta = 120000,
        request_timeout_ms: float | timedelta = 30000,
        idempotent: bool | None = None,
        transactional_id: str | None = None,
        transaction_timeout_ms: int | timedelta = 60000,
        trace_context: Callable[[], TraceContext | None] | None = None,
    ) -> None:
        """Configure the producer; nothing is connected yet.

        `bootstrap`: API addresses, `"host:port,host:port"`, or `"https://host:port"` if the API uses TLS. The keywords
        are the fields of `ProducerSettings`; they replace those of `settings`. Raises `InvalidRequest` for an invalid
        setting or combination of settings.
        """
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None: ...
    @property
    def buffered_bytes(self) -> int:
        """Bytes that unacknowledged records occupy.

        At most about `buffer_bytes`; twice that if transactions and other records are in use at once.
        """
    def close(self, *, flush: bool = True) -> None:
        """Flush, then close all connections. Closing twice is allowed.

        Raises as `flush` does; the producer is closed nevertheless. Without `flush`, the outcome of unacknowledged
        records is unknown.
        """
    def flush(self, timeout: Seconds | None = None) -> None:
        """Send everything now, and return once every record sent before this call is acknowledged.

        Raises the error of the first record or batch that failed since the last flush and whose result was not read, or
        `TimeoutError` after `timeout` seconds.
        """
    @property
    def metrics(self) -> list[Family]:
        """The producer's numbers now: buffer, batches, deliveries, retries (`docs/metrics.md`)."""
    def prepare(self, topic: str) -> None:
        """Look up a topic in advance, so that the first record need not wait for its metadata.

        Raises `InvalidRequest` (`unknown_topic`), or `RetriableError` if the cluster cannot be reached within the
        delivery timeout.
        """
    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | datetime | None = None,
        headers: HeadersArgument | None = None,
    ) -> SentRecord:
        """Queue one record, as the asyncio `send` does, but wait for room if the buffer is full.

        Raises `ClientClosed`. Any other error of the record is raised by the result of the returned
        object, or else by `flush`; it breaks a transaction.
        """
    def send_many(
        self,
        topic: str,
        values: Sequence[bytes | None] | Any,
        *,
        keys: Sequence[bytes | None] | Any = None,
        partition: int | None = None,
        timestamps: Sequence[int] | Any = None,
    ) -> None:
        """Queue whole columns, as the asyncio `send_many` does, and return once all are queued.

        `flush` waits for their acknowledgements.
        """
    def transaction(self, *, wait: Wait = "decided", timeout: Seconds = 30.0) -> Transaction:
        """Return a transaction: `with producer.transaction() as transaction:`.

        Everything that `transaction.send` and its siblings send becomes visible together when the block ends, or, if
        the block raises, not at all (S13). A producer has one open transaction at a time. `wait` and `timeout`
        (seconds) are those of `Transaction.commit`.

        Raises `InvalidRequest` (`invalid_config`) if the producer's settings do not allow transactions.
        """

class SentRecord:
    """One record in flight.

    Any thread may wait for its result, at any time, or never.
    """
    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Return the record's place in the log once it is acknowledged.

        Raises the error that ended it, as awaiting `Producer.send_and_wait` does, or `TimeoutError` after `timeout`
        seconds; the record stays in flight after a timeout.
        """

class Transaction:
    """A transaction, made by `Producer.transaction`; for any thread.

    Use it with `with`.
    """
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None: ...
    def abort(self) -> None:
        """Abort: none of it ever becomes visible. Idempotent if it is aborted already.

        Raises `InvalidRequest` (`transaction_committed`, `producer_fenced`), and `RetriableError` (`outcome_unknown`)
        if an earlier commit may have been applied and no answer arrived: retry.
        """
    def commit(self, *, wait: Wait = "decided", timeout: Seconds = 30.0) -> None:
        """Wait for all acknowledgements, then have the cluster commit. Idempotent if it is committed already.

        * `wait`: `"decided"`, or `"visible"`: return once every reader can see the records.
        * `timeout`: seconds for the decision.

        Raises `InvalidRequest`: `transaction_aborted` if a record failed (the cause is in the text); `offset_moved`,
        `position_taken`, `stale_generation`, ... if the commit was refused, so the transaction is aborted;
        `producer_fenced` if this producer was replaced and must stop. Raises `RetriableError`: `outcome_unknown` if no
        answer arrived: retry; `request_timed_out` if, with `wait="visible"`, it is committed but not visible everywhere
        in time.
        """
    @property
    def key(self) -> TransactionKey:
        """Its producer id and epoch. Raises `InvalidRequest` before it is begun."""
    def prepare(self) -> TransactionOutput:
        """Wait for all acknowledgements, stop sending, and return the output for `commit_together`, in any process.

        Raises `InvalidRequest` (`transaction_aborted`; `invalid_request` for a named producer, whose own process has to
        learn the key of its next transaction).
        """
    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | datetime | None = None,
        headers: HeadersArgument | None = None,
    ) -> SentRecord:
        """Queue one record, as the asyncio `send` does, but wait for room if the buffer is full.

        Raises `ClientClosed`. Any other error of the record is raised by the result of the returned
        object, or else by `flush`; it breaks a transaction.
        """
    def send_many(
        self,
        topic: str,
        values: Sequence[bytes | None] | Any,
        *,
        keys: Sequence[bytes | None] | Any = None,
        partition: int | None = None,
        timestamps: Sequence[int] | Any = None,
    ) -> None:
        """Queue whole columns, as the asyncio `send_many` does, and return once all are queued.

        `flush` waits for their acknowledgements.
        """
    def send_offsets(self, consumed: Offsets) -> None:
        """Add a group consumer's handed-out offsets (its automatic commits must be off), or the given offsets.

        The commit is refused, and the whole transaction aborted, unless each group's committed offset is where these
        begin (`offset_moved`) and the consumer still owns the partitions (`stale_generation`). Raises `InvalidRequest`.
        """
    def set_position(self, name: str, current: int, new: int) -> None:
        """Add a named position: it moves from `current` (-1: it does not exist) to `new`.

        If it is not at `current` at the commit, the transaction is refused (`position_taken`): the work has been
        published before.
        """
    @property
    def state(self) -> TransactionState: ...

def commit_together(
    transactions: Sequence[Transaction | TransactionOutput],
    *,
    positions: Mapping[str, tuple[int, int]] | None = None,
    offsets: Iterable[Offsets] = (),
    block: str = "",
    wait: Wait = "decided",
    timeout: Seconds = 30.0,
    bootstrap: str | Sequence[str] = "",
    credentials: Credentials | None = None,
    tls_authority: str | None = None,
    tls_certificate: str | None = None,
    tls_key: str | None = None,
    ssl: SSLContext | None = None,
    insecure_credentials: bool = False,
) -> None:
    """Commit as `raftlog.commit_together` does, for transactions of blocking producers."""

__all__ = ["Admin", "Consumer", "GroupConsumer", "Producer", "SentRecord", "Transaction", "commit_together"]
