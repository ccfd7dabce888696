"""The client protocol: requests to produce and to fetch, of group members and of transactional producers, in one layout
for every transport.

A message is `u32 big-endian length of head | head | body`. The head is a msgpack array, decoded as a `msgspec` struct,
so every field is type-checked before it is used. The body is the named record batches, one after the other, as they lie
on disk, so that nothing copies or re-encodes them. The same bytes are a message of an HTTP/2 stream (`/v1/produce`,
`/v1/fetch`, `/v1/groups`, `/raftlog.transactions`), the body of an HTTP/1.1 request (`Content-Type:
application/vnd.raftlog.v1`; not for groups), and a forwarded request.

Topics are named by id; a client that has only a name looks the id up in the API first. Requests carry a
`correlation_id` that the answer repeats; the answers to one stream's requests may come in any order.

Every struct begins with its tag, which includes the version. New fields are only appended, with defaults.

Fetch sessions (the idea of KIP-227) let a consumer of many partitions name only those that changed. A stream has at
most one session, which ends with the stream. The client adds *slots* to it: each is a partition and the offset to read
from, under a number that the client never reuses. A slot ends when its batches or its error were sent; to read on, the
client adds the partition again in another slot. A slot without data waits at the broker as long as necessary and need
not be named again. Every request is a long poll over all slots of the session, whichever request added them. Several
requests may be in flight, and each is answered once. `fetch.1` does the same over every transport, without state
between requests.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, TypeAlias, get_args

import msgspec

from .config import MAX_REQUEST_HEAD_BYTES, MAX_WIRE_MESSAGE_BYTES
from .errors import InvalidRequest, RemoteProtocolError
from .idempotency import MAX_KEY
from .model import Offset, ProducerEpoch, ProducerId, TopicId, TopicPartition
from .ports import Buffer, Part, part_length
from .records.header import BatchHeader
from .transactions import ATTEMPT_BYTES, TransactionKey

CONTENT_TYPE = "application/vnd.raftlog.v1"
"""Media type of a message as an HTTP/1.1 body."""
PRODUCE_PATH = "/v1/produce"
FETCH_PATH = "/v1/fetch"
GROUPS_PATH = "/v1/groups"
TRANSACTIONS_PATH = "/raftlog.transactions"

MAX_PARTITIONS_PER_REQUEST = 10_000
MAX_OUTPUTS = 10_000
"""The most outputs in one commit, and the most topics in one output."""
MAX_GROUPS_PER_COMMIT = 100
MAX_POSITIONS_PER_COMMIT = 100
MAX_TRANSACTION_NAME = 512
MAX_VISIBLE_WITHIN_MS = 30_000

TopicIdBytes: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
Natural: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
GroupName: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
PartitionNumber: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Epoch: TypeAlias = Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]
Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=255)]
TopicName: TypeAlias = Annotated[str, msgspec.Meta(max_length=249)]
TimeoutMs: TypeAlias = Annotated[int, msgspec.Meta(ge=1_000, le=1_800_000)]
OffsetOrNone: TypeAlias = Annotated[int, msgspec.Meta(ge=-1, le=2**62)]
TransactionName: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_TRANSACTION_NAME)]

MAX_IDEMPOTENCY_KEY = MAX_KEY + 8
"""The longest idempotency key, with the number of its batch."""

_HEAD_LENGTH = struct.Struct(">I")


class _Message(msgspec.Struct, array_like=True, frozen=True):
    """The base of requests and answers. An answer has the correlation id of its request."""

    correlation_id: Natural


class _OfPartition(msgspec.Struct, array_like=True, frozen=True):
    """The base of what is about one partition."""

    topic_id: TopicIdBytes
    partition: PartitionNumber


class _PartitionResult(_OfPartition, frozen=True):
    """The base of the results for one partition. `error` is empty, or a code of `raftlog.errors.CODES`."""

    error: str = ""
    detail: str = ""


class ProducePartition(_OfPartition, frozen=True):
    """One batch for one partition: `length` bytes of the body."""

    length: Natural
    resent: bool = False
    """Whether an earlier attempt of this batch, unanswered or with an unknown outcome, may have been appended. If the
    leader cannot tell whether it was, it appends nothing (S1)."""
    idempotency_key: Annotated[str, msgspec.Meta(max_length=MAX_IDEMPOTENCY_KEY)] = ""
    """The text of which the batch's producer id is the hash, if that stands for an idempotency key."""
    expected_end_offset: OffsetOrNone = -1
    """The offset that the batch must get: if the log ends elsewhere, the leader appends nothing
    (`log_end_moved`). -1: any."""


class ProduceRequest(_Message, frozen=True, tag="produce.1"):
    """Batches for many partitions. Batches for one partition are appended in the given order. With `acks` 0 there is no
    answer."""

    acks: Annotated[int, msgspec.Meta(ge=-1, le=1)]
    timeout_ms: Natural
    partitions: Annotated[list[ProducePartition], msgspec.Meta(max_length=MAX_PARTITIONS_PER_REQUEST)]
    forwarded: bool = False
    """Set by the broker that forwards the request: it is not forwarded again."""
    restored: bool = False
    """Whether the batches are those of a backup, for topics that are being restored: each keeps its base offset, which
    must be the end of the log, and may be a marker or a hole. Needs the right to alter the cluster."""


class ProducedPartition(_PartitionResult, frozen=True):
    """The result of one batch."""

    base_offset: int = -1
    log_append_time_ms: int = -1
    """Set if the topic has `message.timestamp.type=LogAppendTime`; otherwise -1."""
    log_start_offset: int = -1
    leader: int = -1
    """With `not_leader`: the presumed leader."""
    log_end_offset: int = -1
    """With `log_end_moved`: where the log ends."""


class ProduceResponse(_Message, frozen=True, tag="produced.1"):
    """Results in the order of the request's partitions."""

    partitions: list[ProducedPartition]
    throttle_ms: Natural = 0
    """Time for which the caller's next requests wait, in milliseconds, since it is over a quota (KIP-219)."""


class FetchPartition(_OfPartition, frozen=True):
    """The position to read from in one partition."""

    offset: Natural
    max_bytes: Natural
    current_leader_epoch: int = -1
    """Leader epoch that the client knows. A leader of another epoch refuses the fetch (KIP-320). -1: not checked."""


class FetchRequest(_Message, frozen=True, tag="fetch.1"):
    """A long poll over many partitions, answered when `min_bytes` are available, something failed, or time is up."""

    max_wait_ms: Natural
    min_bytes: Natural
    max_bytes: Natural
    partitions: Annotated[list[FetchPartition], msgspec.Meta(max_length=MAX_PARTITIONS_PER_REQUEST)]
    isolation: Annotated[int, msgspec.Meta(ge=0, le=1)] = 0
    """0 (read_uncommitted): up to the high watermark. 1 (read_committed): up to the last stable offset, and the answer
    lists the aborted ranges (S13)."""
    forwarded: bool = False


class AbortedRange(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An aborted range: the transactional batches of this producer id and epoch with a base offset in [first, end).

    A consumer with `read_committed` skips them. (Every consumer skips control batches.)
    """

    producer_id: int
    producer_epoch: int
    first_offset: int
    end_offset: int


class AbortedBatches:
    """The batches of some aborted ranges."""

    def __init__(self, ranges: Iterable[AbortedRange]) -> None:
        self._ranges: dict[tuple[int, int], list[range]] = {}
        """Producer id and epoch → the base offsets of aborted batches."""
        for one in ranges:
            offsets = range(one.first_offset, one.end_offset)
            self._ranges.setdefault((one.producer_id, one.producer_epoch), []).append(offsets)

    def __contains__(self, header: BatchHeader) -> bool:
        if not self._ranges or not header.is_transactional:
            return False
        ranges = self._ranges.get((header.producer_id, header.producer_epoch), ())
        return any(header.base_offset in one for one in ranges)


class FetchedPartition(_PartitionResult, frozen=True):
    """The result for one partition: `length` bytes of whole batches. The first may begin below the requested offset."""

    high_watermark: int = -1
    last_stable_offset: int = -1
    """-1: the leader does not know it yet."""
    log_start_offset: int = -1
    leader_epoch: int = -1
    length: Natural = 0
    leader: int = -1
    aborted: list[AbortedRange] = []
    """With isolation 1: the aborted ranges among these batches; ranges may extend beyond them."""


class FetchResponse(_Message, frozen=True, tag="fetched.1"):
    """Results in the order of the request's partitions; the body holds their batches in that order."""

    partitions: list[FetchedPartition]
    throttle_ms: Natural = 0
    """Time for which the caller's next requests wait, in milliseconds, since it is over a quota (KIP-219)."""


class SlotToFetch(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The position to read from in one partition."""

    slot: Natural
    """Slot number, greater than all earlier ones of this session."""
    topic_id: TopicIdBytes
    partition: PartitionNumber
    offset: Natural
    max_bytes: Natural
    current_leader_epoch: int = -1
    """Leader epoch that the client knows. A leader of another epoch refuses the fetch (KIP-320). -1: not checked."""


class SessionFetchRequest(_Message, frozen=True, tag="session_fetch.1"):
    """A long poll over all slots of a session, answered when `min_bytes` are available, something failed, or its time
    is over."""

    session: Natural
    """Session number, chosen by the client and unique within the stream."""
    begins: bool
    """Whether this request begins the session, replacing any earlier one of the stream.

    Otherwise the session must be the stream's current one. If not, the answer is `unknown_fetch_session`, and the
    request has no effect.
    """
    max_wait_ms: Natural
    min_bytes: Natural
    max_bytes: Natural
    added: Annotated[list[SlotToFetch], msgspec.Meta(max_length=MAX_PARTITIONS_PER_REQUEST)] = []
    dropped: Annotated[list[Natural], msgspec.Meta(max_length=MAX_PARTITIONS_PER_REQUEST)] = []
    """Slots to remove. Those that have ended already are ignored."""
    isolation: Annotated[int, msgspec.Meta(ge=0, le=1)] = 0
    """Isolation of a session that begins, as in `fetch.1`."""


class FetchedSlot(msgspec.Struct, array_like=True, frozen=True):
    """The result for one slot. With batches or an error the slot ends; with neither it keeps waiting, and its
    watermarks moved."""

    slot: Natural
    error: str = ""
    detail: str = ""
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    leader_epoch: int = -1
    length: Natural = 0
    leader: int = -1
    aborted: list[AbortedRange] = []


class SessionFetchResponse(_Message, frozen=True, tag="session_fetched.1"):
    """The slots with news; the body holds their batches in that order."""

    slots: list[FetchedSlot]
    throttle_ms: Natural = 0
    """Time for which the caller's next requests wait, in milliseconds, since it is over a quota (KIP-219)."""


class OffsetQuery(_OfPartition, frozen=True):
    """A lookup of one offset. `timestamp_ms`: -1 latest, -2 earliest, else the first record at or after that time."""

    timestamp_ms: Annotated[int, msgspec.Meta(ge=-2)]


class OffsetsRequest(_Message, frozen=True, tag="offsets.1"):
    """Lookups of offsets by position or time in many partitions."""

    partitions: Annotated[list[OffsetQuery], msgspec.Meta(max_length=MAX_PARTITIONS_PER_REQUEST)]
    forwarded: bool = False
    isolation: Annotated[int, msgspec.Meta(ge=0, le=1)] = 0
    """1: the latest offset is the last stable one, and no record beyond it is found."""


class FoundOffset(_PartitionResult, frozen=True):
    """The result of a lookup. Offset and timestamp are -1 if there is no record at or after that time."""

    offset: int = -1
    timestamp_ms: int = -1
    leader_epoch: int = -1
    leader: int = -1


class OffsetsResponse(_Message, frozen=True, tag="offsets_found.1"):
    partitions: list[FoundOffset]


class DeleteRecordsPartition(_OfPartition, frozen=True):
    """A deletion of one partition's records below the offset `before`; -1: below the high watermark."""

    before: Annotated[int, msgspec.Meta(ge=-1, le=2**62)]


class DeleteRecordsRequest(_Message, frozen=True, tag="delete_records.1"):
    """A deletion of records, answered when every in-sync replica has it on disk, or after `timeout_ms`.

    Brokers forward it to one another; clients use the HTTP API.
    """

    timeout_ms: Natural
    partitions: Annotated[list[DeleteRecordsPartition], msgspec.Meta(max_length=MAX_PARTITIONS_PER_REQUEST)]
    forwarded: bool = False


class DeletedPartition(_PartitionResult, frozen=True):
    """The result for one partition: its new log start offset."""

    log_start_offset: int = -1
    leader: int = -1


class DeleteRecordsResponse(_Message, frozen=True, tag="records_deleted.1"):
    partitions: list[DeletedPartition]


class GroupHeartbeat(msgspec.Struct, array_like=True, frozen=True):
    """A heartbeat of one member of a consumer group."""

    group_id: GroupName
    member_id: GroupName
    incarnation: Natural


class GroupHeartbeatsRequest(_Message, frozen=True, tag="group_heartbeats.1"):
    """Heartbeats for the coordinator of groups, which brokers forward to one another."""

    members: Annotated[list[GroupHeartbeat], msgspec.Meta(max_length=MAX_PARTITIONS_PER_REQUEST)]


class GroupHeartbeatsResponse(_Message, frozen=True, tag="group_heartbeats_heard.1"):
    """Results in the order of the request: empty if accepted, otherwise a code of `raftlog.errors.CODES`."""

    errors: list[str]


class _GroupMessage(_Message, frozen=True):
    """The base of the requests of a group's members."""

    group_id: GroupName


class JoinGroupRequest(_GroupMessage, frozen=True, tag="join_group.1"):
    """A consumer that joins a group, joins again, or changes its subscription."""

    member_id: GroupName
    instance_id: Name
    """Name of a static member: it takes its predecessor's place and partitions. Empty: none."""
    client_id: Name
    topics: Annotated[list[TopicName], msgspec.Meta(max_length=256)]
    pattern: Annotated[str, msgspec.Meta(max_length=1_000)]
    """A pattern (RE2): every topic whose whole name matches is subscribed as well."""
    assignor: Name
    session_timeout_ms: TimeoutMs
    rebalance_timeout_ms: TimeoutMs


class ReleasedTopic(msgspec.Struct, array_like=True, frozen=True):
    """Partitions of one topic that a member has released."""

    topic_id: TopicIdBytes
    partitions: Annotated[list[PartitionNumber], msgspec.Meta(max_length=MAX_PARTITIONS_PER_REQUEST)]


class MemberHeartbeatRequest(_GroupMessage, frozen=True, tag="member_heartbeat.1"):
    """A member's heartbeat; it names the partitions that the member has released since the previous one."""

    member_id: GroupName
    incarnation: Natural
    generation: Natural
    """Generation of the assignment that the member reads by."""
    released: Annotated[list[ReleasedTopic], msgspec.Meta(max_length=MAX_PARTITIONS_PER_REQUEST)] = []


class AssignedTopic(msgspec.Struct, array_like=True, frozen=True):
    """Partitions of one topic that a member may read, or must release."""

    topic_id: TopicIdBytes
    topic: str
    partitions: list[PartitionNumber]


class MembershipResponse(_Message, frozen=True, tag="membership.1"):
    """The state of a member in its group: the answer to a join and to a heartbeat."""

    incarnation: int
    generation: int
    state: str
    assigned: list[AssignedTopic]
    """Partitions that the member may read and commit."""
    revoking: list[AssignedTopic]
    """Partitions that the member must release, because other members wait for them."""


class LeaveGroupRequest(_GroupMessage, frozen=True, tag="leave_group.1"):
    """A member that leaves its group."""

    member_id: GroupName
    incarnation: Natural


class OffsetToCommit(_OfPartition, frozen=True):
    """The next offset to read in one partition."""

    offset: Natural
    leader_epoch: Epoch = -1
    metadata: Annotated[str, msgspec.Meta(max_length=1_024)] = ""


class CommitOffsetsRequest(_GroupMessage, frozen=True, tag="commit_offsets.1"):
    """A commit: all of these offsets or none. No offset is lowered.

    Without a member id it is the commit of a consumer that assigns partitions to itself; the group has no members.
    """

    member_id: Name
    incarnation: Natural
    generation: Natural
    offsets: Annotated[list[OffsetToCommit], msgspec.Meta(max_length=MAX_PARTITIONS_PER_REQUEST)]


class GroupChangedResponse(_Message, frozen=True, tag="group_changed.1"):
    """The answer to a commit and to a leave: the change is decided."""


class GroupOffsetsRequest(_GroupMessage, frozen=True, tag="group_offsets.1"):
    """A read of all committed offsets of a group; linearizable (S7)."""


class CommittedOffset(msgspec.Struct, array_like=True, frozen=True):
    """A committed offset."""

    topic_id: TopicIdBytes
    topic: str
    partition: PartitionNumber
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class GroupOffsetsResponse(_Message, frozen=True, tag="group_offsets_found.1"):
    """The committed offsets of a group, in partitions that exist."""

    offsets: list[CommittedOffset]


class _Logged(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, gc=False):
    """The base of the contents of a commit, which the metadata log keeps in the same bytes: it never gains a field."""


class TopicEnds(_Logged, frozen=True):
    """The end offsets (exclusive) of a transaction's records in partitions of one topic, one for each partition."""

    topic_id: Annotated[TopicId, msgspec.Meta(min_length=16, max_length=16)]
    partitions: Annotated[tuple[PartitionNumber, ...], msgspec.Meta(max_length=MAX_PARTITIONS_PER_REQUEST)]
    end_offsets: Annotated[
        tuple[Annotated[Offset, msgspec.Meta(ge=0, le=2**62)], ...],
        msgspec.Meta(max_length=MAX_PARTITIONS_PER_REQUEST),
    ]


class TransactionOutput(_Logged, frozen=True):
    """The output of one transaction: the partitions that it wrote, each with the end of its last acknowledged batch.

    It may come in several pieces, each with other partitions.
    """

    producer_id: Annotated[ProducerId, msgspec.Meta(ge=0, le=2**62)]
    producer_epoch: Annotated[ProducerEpoch, msgspec.Meta(ge=0, le=2**15 - 1)]
    topics: Annotated[tuple[TopicEnds, ...], msgspec.Meta(max_length=MAX_OUTPUTS)]

    @staticmethod
    def of(key: TransactionKey, end_offsets: Mapping[TopicPartition, Offset]) -> TransactionOutput:
        """Return the output of a transaction that wrote up to these offsets."""
        topics: dict[TopicId, list[TopicPartition]] = {}
        for topic_partition in sorted(end_offsets):
            topics.setdefault(topic_partition.topic_id, []).append(topic_partition)
        packed = (
            TopicEnds(topic_id, tuple(one.partition for one in named), tuple(end_offsets[one] for one in named))
            for topic_id, named in topics.items()
        )
        return TransactionOutput(*key, tuple(packed))

    @property
    def key(self) -> TransactionKey:
        return TransactionKey(self.producer_id, self.producer_epoch)


class OffsetMove(_Logged, frozen=True):
    """A move of a group's offset from `start` (-1: none is committed) to `end`. Refused unless it is at `start`."""

    topic_id: Annotated[TopicId, msgspec.Meta(min_length=16, max_length=16)]
    partition: PartitionNumber
    start: OffsetOrNone
    end: Annotated[Offset, msgspec.Meta(ge=0, le=2**62)]
    leader_epoch: Epoch = -1
    metadata: Annotated[str, msgspec.Meta(max_length=1_024)] = ""

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic_id, self.partition)


class GroupMoves(_Logged, frozen=True):
    """The offsets consumed by one member of one group; without a member id: of a group that has no members.

    They are fenced as an ordinary commit of offsets is, and in addition every start must be the current offset.
    """

    group_id: GroupName
    member_id: Name
    incarnation: Natural
    generation: Natural
    moves: Annotated[tuple[OffsetMove, ...], msgspec.Meta(max_length=MAX_PARTITIONS_PER_REQUEST)]


class PositionMove(_Logged, frozen=True):
    """An advance of a named counter from `current` (-1: it does not exist) to `new`."""

    name: TransactionName
    current: OffsetOrNone
    new: Natural


class InitializeRequest(_Message, frozen=True, tag="initialize_producer.1"):
    """The initialization of a named producer: earlier producers are fenced, and their undecided transactions aborted.

    Answered with the key of its first transaction.
    """

    transactional_id: TransactionName
    timeout_ms: Natural
    """The time that a transaction of this producer may stay open, in milliseconds."""
    attempt: Annotated[bytes, msgspec.Meta(min_length=ATTEMPT_BYTES, max_length=ATTEMPT_BYTES)] | None = None
    """Random, and the same in each retry: a retry gets the first answer and fences no producer, or `producer_fenced` if
    another producer has begun since."""
    after: TransactionKey | None = None
    """The producer's last transaction under this name; the request is refused if another producer has begun since."""


class OpenBlockRequest(_Message, frozen=True, tag="open_block.1"):
    """A request for a block of producer ids without a transactional id, each valid for one transaction, of epoch 0."""

    name: Annotated[str, msgspec.Meta(max_length=MAX_TRANSACTION_NAME)]
    """Requests with the same name get the same block until it is retired. Empty for a block of this request alone."""
    count: Natural
    timeout_ms: Natural


class RetireBlockRequest(_Message, frozen=True, tag="retire_block.1"):
    """The end of a named block; its undecided transactions are aborted permanently."""

    name: TransactionName


class CommitRequest(_Message, frozen=True, tag="commit_transactions.1"):
    """The contents of one commit, applied as a whole or not at all (S13)."""

    outputs: Annotated[tuple[TransactionOutput, ...], msgspec.Meta(max_length=MAX_OUTPUTS)]
    groups: Annotated[tuple[GroupMoves, ...], msgspec.Meta(max_length=MAX_GROUPS_PER_COMMIT)] = ()
    positions: Annotated[tuple[PositionMove, ...], msgspec.Meta(max_length=MAX_POSITIONS_PER_COMMIT)] = ()
    block: Annotated[str, msgspec.Meta(max_length=MAX_TRANSACTION_NAME)] = ""
    """The name of a block that is retired with the commit: ids of it that this does not commit are aborted
    permanently."""
    visible_within_ms: Annotated[int, msgspec.Meta(ge=0, le=MAX_VISIBLE_WITHIN_MS)] = 0
    """The time to wait until the transactions are visible in every partition, in milliseconds; 0 to wait for the
    decision only."""


class AbortRequest(_Message, frozen=True, tag="abort_transactions.1"):
    """An abort; refused if one of the transactions is already committed."""

    transactions: Annotated[tuple[TransactionKey, ...], msgspec.Meta(max_length=MAX_PARTITIONS_PER_REQUEST)]


class RemovePositionRequest(_Message, frozen=True, tag="remove_position.1"):
    """The removal of a named counter whose value is `value`."""

    name: TransactionName
    value: Natural


class TransactionResponse(_Message, frozen=True, tag="transaction_answered.1"):
    """The answer to a transaction request that was carried out."""

    keys: tuple[TransactionKey, ...] = ()
    """The next keys of the named producers, in the order of the request; unnamed producers have none. Of a block: the
    key with its first id."""
    count: Natural = 0
    """The number of ids in the block."""
    visible: bool = False
    """Whether every partition had its marker within `visible_within_ms`."""


class ErrorResponse(msgspec.Struct, array_like=True, frozen=True, tag="error.1"):
    """The refusal of a whole request: it could not be decoded, the broker was overloaded, or a change was refused or
    has an unknown outcome. `correlation_id` is -1 if the request's could not be read."""

    correlation_id: int
    error: str
    detail: str


GroupRequest: TypeAlias = (
    JoinGroupRequest | MemberHeartbeatRequest | LeaveGroupRequest | CommitOffsetsRequest | GroupOffsetsRequest
)
"""The requests of members of consumer groups."""
GroupResponse: TypeAlias = MembershipResponse | GroupChangedResponse | GroupOffsetsResponse
TransactionRequest: TypeAlias = (
    CommitRequest | AbortRequest | InitializeRequest | OpenBlockRequest | RetireBlockRequest | RemovePositionRequest
)
"""The requests of transactional producers."""
PartitionsRequest: TypeAlias = ProduceRequest | FetchRequest | OffsetsRequest | DeleteRecordsRequest
"""Requests with an answer for each partition."""
Request: TypeAlias = (
    PartitionsRequest | SessionFetchRequest | GroupHeartbeatsRequest | GroupRequest | TransactionRequest
)
ThrottledResponse: TypeAlias = ProduceResponse | FetchResponse | SessionFetchResponse

Response: TypeAlias = (
    ProduceResponse
    | FetchResponse
    | SessionFetchResponse
    | OffsetsResponse
    | DeleteRecordsResponse
    | GroupHeartbeatsResponse
    | GroupResponse
    | TransactionResponse
    | ErrorResponse
)

TIMESTAMP_LATEST = -1
TIMESTAMP_EARLIEST = -2
UP_TO_HIGH_WATERMARK = -1

_encoder = msgspec.msgpack.Encoder()
_request_decoder: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_response_decoder = msgspec.msgpack.Decoder(Response)

_MALFORMED = (msgspec.MsgspecError, ValueError, RecursionError)
"""Errors of decoding: text that is not UTF-8 is a `ValueError`; a value that is nested too deep, even in an unknown
field, is a `RecursionError`."""


class _Tag(msgspec.Struct, array_like=True):
    """The tag of any message, without the rest."""

    tag: str


_tag_decoder = msgspec.msgpack.Decoder(_Tag)
_REQUEST_TAGS = {tag.partition(".")[0]: tag for tag in (str(kind.__struct_config__.tag) for kind in get_args(Request))}
"""A request's name without its version → its tag in the version that this code supports."""


def encode(head: Request | Response, body: Sequence[Part] = ()) -> list[Part]:
    """Return the message as a list of parts; the parts of the body are passed through, not copied."""
    packed = _encoder.encode(head)
    return [_HEAD_LENGTH.pack(len(packed)) + packed, *body]


def decode_request(message: Buffer) -> tuple[Request, memoryview]:
    """Decode a request into head and body.

    Raises `InvalidRequest` if it is malformed, with the code `unsupported_version` if it is of an unsupported version.
    """
    try:
        head, body = _split(message)
        if head.nbytes > MAX_REQUEST_HEAD_BYTES:
            raise ValueError(f"the head may have at most {MAX_REQUEST_HEAD_BYTES} bytes, not {head.nbytes}")
        request = _decode_request_head(head)
        if isinstance(request, ProduceRequest) and sum(p.length for p in request.partitions) != body.nbytes:
            raise ValueError("the lengths of the batches do not add up to the body")
    except _MALFORMED as error:
        raise InvalidRequest("invalid_request", f"malformed request: {error}") from None
    return request, body


def _decode_request_head(head: memoryview) -> Request:
    try:
        return _request_decoder.decode(head)
    except msgspec.ValidationError as error:
        try:
            tag = _tag_decoder.decode(head).tag
        except _MALFORMED:
            raise error from None
        spoken = _REQUEST_TAGS.get(tag.partition(".")[0], tag)
        if spoken != tag:
            raise InvalidRequest("unsupported_version", f"{tag[:64]} is not supported, only {spoken}") from None
        raise


def decode_response(message: Buffer) -> tuple[Response, memoryview]:
    """Decode an answer into head and body.

    Raises `RemoteProtocolError` if it is malformed.
    """
    try:
        head, body = _split(message)
        response = _response_decoder.decode(head)
        if _length_of_batches(response) not in (None, body.nbytes):
            raise ValueError("the lengths of the partitions do not add up to the body")
    except _MALFORMED as error:
        raise RemoteProtocolError(f"malformed answer: {error}") from None
    return response, body


def _length_of_batches(response: Response) -> int | None:
    """Return the length of the body according to the head; None if the head does not say."""
    if isinstance(response, FetchResponse):
        return sum(p.length for p in response.partitions)
    if isinstance(response, SessionFetchResponse):
        return sum(s.length for s in response.slots)
    return None


def split_body(body: memoryview, lengths: Sequence[int]) -> list[memoryview]:
    """Cut the body into pieces of these lengths, without copying."""
    pieces, start = [], 0
    for length in lengths:
        pieces.append(body[start : start + length])
        start += length
    return pieces


def message_length(parts: Sequence[Part]) -> int:
    """Return the number of bytes in a message."""
    return sum(part_length(part) for part in parts)


def _split(message: Buffer) -> tuple[memoryview, memoryview]:
    view = memoryview(message).cast("B")
    if not _HEAD_LENGTH.size <= view.nbytes <= MAX_WIRE_MESSAGE_BYTES:
        raise ValueError(f"{view.nbytes} bytes cannot be a message")
    (length,) = _HEAD_LENGTH.unpack_from(view)
    start = _HEAD_LENGTH.size
    if length > view.nbytes - start:
        raise ValueError("the head is longer than the message")
    return view[start : start + length], view[start + length :]
