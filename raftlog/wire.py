"""The client protocol: produce and fetch requests and their answers, in one layout for every transport.

A message is `u32 big-endian length of head | head | body`. The head is a msgpack array, decoded as a `msgspec` struct,
so every field is type-checked before it is used. The body is the named record batches, one after the other, as they lie
on disk, so that nothing copies or re-encodes them. The same bytes are a message of an HTTP/2 stream (`/v1/produce`,
`/v1/fetch`), the body of an HTTP/1.1 request (`Content-Type: application/vnd.raftlog.v1`), and a forwarded request.

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
from collections.abc import Sequence
from typing import Annotated, TypeAlias, get_args

import msgspec

from .config import MAX_REQUEST_HEAD_BYTES, MAX_WIRE_MESSAGE_BYTES
from .errors import InvalidRequest, RemoteProtocolError
from .ports import Buffer, Part, part_length

CONTENT_TYPE = "application/vnd.raftlog.v1"
"""Media type of a message as an HTTP/1.1 body."""
PRODUCE_PATH = "/v1/produce"
FETCH_PATH = "/v1/fetch"

MAX_PARTITIONS_PER_REQUEST = 10_000

TopicIdBytes: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
Natural: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
GroupName: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
PartitionNumber: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]

_HEAD_LENGTH = struct.Struct(">I")


class ProducePartition(msgspec.Struct, array_like=True, frozen=True):
    """One batch for one partition: `length` bytes of the body."""

    topic_id: TopicIdBytes
    partition: PartitionNumber
    length: Natural
    resent: bool = False
    """Whether an earlier attempt of this batch, unanswered or with an unknown outcome, may have been appended. If the
    leader cannot tell whether it was, it appends nothing (S1)."""


class ProduceRequest(msgspec.Struct, array_like=True, frozen=True, tag="produce.1"):
    """Batches for many partitions. Batches for one partition are appended in the given order. With `acks` 0 there is no
    answer."""

    correlation_id: Natural
    acks: Annotated[int, msgspec.Meta(ge=-1, le=1)]
    timeout_ms: Natural
    partitions: Annotated[list[ProducePartition], msgspec.Meta(max_length=MAX_PARTITIONS_PER_REQUEST)]
    forwarded: bool = False
    """Set by the broker that forwards the request: it is not forwarded again."""


class ProducedPartition(msgspec.Struct, array_like=True, frozen=True):
    """The result of one batch. `error` is empty, or a code of `raftlog.errors.CODES`."""

    topic_id: TopicIdBytes
    partition: PartitionNumber
    error: str = ""
    detail: str = ""
    base_offset: int = -1
    log_append_time_ms: int = -1
    """Set if the topic has `message.timestamp.type=LogAppendTime`; otherwise -1."""
    log_start_offset: int = -1
    leader: int = -1
    """With `not_leader`: the presumed leader."""


class ProduceResponse(msgspec.Struct, array_like=True, frozen=True, tag="produced.1"):
    """Results in the order of the request's partitions."""

    correlation_id: Natural
    partitions: list[ProducedPartition]


class FetchPartition(msgspec.Struct, array_like=True, frozen=True):
    """The position to read from in one partition."""

    topic_id: TopicIdBytes
    partition: PartitionNumber
    offset: Natural
    max_bytes: Natural
    current_leader_epoch: int = -1
    """Leader epoch that the client knows. A leader of another epoch refuses the fetch (KIP-320). -1: not checked."""


class FetchRequest(msgspec.Struct, array_like=True, frozen=True, tag="fetch.1"):
    """A long poll over many partitions, answered when `min_bytes` are available, something failed, or time is up."""

    correlation_id: Natural
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


class FetchedPartition(msgspec.Struct, array_like=True, frozen=True):
    """The result for one partition: `length` bytes of whole batches. The first may begin below the requested offset."""

    topic_id: TopicIdBytes
    partition: PartitionNumber
    error: str = ""
    detail: str = ""
    high_watermark: int = -1
    last_stable_offset: int = -1
    """-1: the leader does not know it yet."""
    log_start_offset: int = -1
    leader_epoch: int = -1
    length: Natural = 0
    leader: int = -1
    aborted: list[AbortedRange] = []
    """With isolation 1: the aborted ranges among these batches; ranges may extend beyond them."""


class FetchResponse(msgspec.Struct, array_like=True, frozen=True, tag="fetched.1"):
    """Results in the order of the request's partitions; the body holds their batches in that order."""

    correlation_id: Natural
    partitions: list[FetchedPartition]


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


class SessionFetchRequest(msgspec.Struct, array_like=True, frozen=True, tag="session_fetch.1"):
    """A long poll over all slots of a session, answered when `min_bytes` are available, something failed, or its time
    is over."""

    correlation_id: Natural
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


class SessionFetchResponse(msgspec.Struct, array_like=True, frozen=True, tag="session_fetched.1"):
    """The slots with news; the body holds their batches in that order."""

    correlation_id: Natural
    slots: list[FetchedSlot]


class OffsetQuery(msgspec.Struct, array_like=True, frozen=True):
    """A lookup of one offset. `timestamp_ms`: -1 latest, -2 earliest, else the first record at or after that time."""

    topic_id: TopicIdBytes
    partition: PartitionNumber
    timestamp_ms: Annotated[int, msgspec.Meta(ge=-2)]


class OffsetsRequest(msgspec.Struct, array_like=True, frozen=True, tag="offsets.1"):
    """Lookups of offsets by position or time in many partitions."""

    correlation_id: Natural
    partitions: Annotated[list[OffsetQuery], msgspec.Meta(max_length=MAX_PARTITIONS_PER_REQUEST)]
    forwarded: bool = False
    isolation: Annotated[int, msgspec.Meta(ge=0, le=1)] = 0
    """1: the latest offset is the last stable one, and no record beyond it is found."""


class FoundOffset(msgspec.Struct, array_like=True, frozen=True):
    """The result of a lookup. Offset and timestamp are -1 if there is no record at or after that time."""

    topic_id: TopicIdBytes
    partition: PartitionNumber
    error: str = ""
    detail: str = ""
    offset: int = -1
    timestamp_ms: int = -1
    leader_epoch: int = -1
    leader: int = -1


class OffsetsResponse(msgspec.Struct, array_like=True, frozen=True, tag="offsets_found.1"):
    correlation_id: Natural
    partitions: list[FoundOffset]


class DeleteRecordsPartition(msgspec.Struct, array_like=True, frozen=True):
    """A deletion of one partition's records below the offset `before`; -1: below the high watermark."""

    topic_id: TopicIdBytes
    partition: PartitionNumber
    before: Annotated[int, msgspec.Meta(ge=-1, le=2**62)]


class DeleteRecordsRequest(msgspec.Struct, array_like=True, frozen=True, tag="delete_records.1"):
    """A deletion of records, answered when every in-sync replica has it on disk, or after `timeout_ms`.

    Brokers forward it to one another; clients use the HTTP API.
    """

    correlation_id: Natural
    timeout_ms: Natural
    partitions: Annotated[list[DeleteRecordsPartition], msgspec.Meta(max_length=MAX_PARTITIONS_PER_REQUEST)]
    forwarded: bool = False


class DeletedPartition(msgspec.Struct, array_like=True, frozen=True):
    """The result for one partition: its new log start offset."""

    topic_id: TopicIdBytes
    partition: PartitionNumber
    error: str = ""
    detail: str = ""
    log_start_offset: int = -1
    leader: int = -1


class DeleteRecordsResponse(msgspec.Struct, array_like=True, frozen=True, tag="records_deleted.1"):
    correlation_id: Natural
    partitions: list[DeletedPartition]


class GroupHeartbeat(msgspec.Struct, array_like=True, frozen=True):
    """A heartbeat of one member of a consumer group."""

    group_id: GroupName
    member_id: GroupName
    incarnation: Natural


class GroupHeartbeatsRequest(msgspec.Struct, array_like=True, frozen=True, tag="group_heartbeats.1"):
    """Heartbeats for the coordinator of groups. Brokers forward them to one another; consumers use the HTTP API."""

    correlation_id: Natural
    members: Annotated[list[GroupHeartbeat], msgspec.Meta(max_length=MAX_PARTITIONS_PER_REQUEST)]


class GroupHeartbeatsResponse(msgspec.Struct, array_like=True, frozen=True, tag="group_heartbeats_heard.1"):
    """Results in the order of the request: empty if accepted, otherwise a code of `raftlog.errors.CODES`."""

    correlation_id: Natural
    errors: list[str]


class ErrorResponse(msgspec.Struct, array_like=True, frozen=True, tag="error.1"):
    """The refusal of a whole request: it could not be decoded, or the broker was overloaded. `correlation_id` is -1 if
    the request's could not be read."""

    correlation_id: int
    error: str
    detail: str


Request: TypeAlias = (
    ProduceRequest | FetchRequest | SessionFetchRequest | OffsetsRequest | DeleteRecordsRequest | GroupHeartbeatsRequest
)
Response: TypeAlias = (
    ProduceResponse
    | FetchResponse
    | SessionFetchResponse
    | OffsetsResponse
    | DeleteRecordsResponse
    | GroupHeartbeatsResponse
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
