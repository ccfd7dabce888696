"""What travels for a client: produce and fetch requests and their answers, one layout for every carrier.

A message is `u32 big-endian length of head | head | body`. The head is a msgpack array (a `msgspec` struct, so every
field is type-checked before anyone looks at it); the body is the named record batches one after the other, as they
lie on disk, so that nothing copies or re-encodes them. The same bytes are a message of an HTTP/2 stream (`/v1/produce`,
`/v1/fetch`), the body of an HTTP/1.1 request (`Content-Type: application/vnd.raftlog.v1`), and a forwarded request.

Topics are named by id; whoever only knows a name asks the API first. Requests carry a `correlation_id` that the answer
repeats; answers to one stream's requests may come in any order.

Every struct begins with its tag, which carries the version: fields are only ever appended, with defaults.

Fetch sessions (KIP-227's idea) let a consumer of many partitions name only those that changed. A stream has at most one
session, and the session goes with it. The client puts *slots* into it, each a partition and the offset to read on
from, under a number that it never uses again. A slot whose batches (or whose error) were sent is over, and the client
puts the partition in again when it wants more, in another slot; one that has nothing yet waits at the broker, for as
long as it takes, and nobody names it again. Every request is a long poll over all slots of the session, whichever
request they came with; several may be under way, and each is answered once. `fetch.1` does the same over every
carrier, without a memory between requests.
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
    """One batch for one partition; `length` bytes of the body."""

    topic_id: TopicIdBytes
    partition: PartitionNumber
    length: Natural
    resent: bool = False
    """An earlier attempt of this batch, whose answer never came or told of an unknown outcome, may have been appended.
    A leader that cannot tell whether it was appends nothing then (S1)."""


class ProduceRequest(msgspec.Struct, array_like=True, frozen=True, tag="produce.1"):
    """Batches for many partitions. Those for one partition are appended in the order given. With `acks` 0 there is no
    answer."""

    correlation_id: Natural
    acks: Annotated[int, msgspec.Meta(ge=-1, le=1)]
    timeout_ms: Natural
    partitions: Annotated[list[ProducePartition], msgspec.Meta(max_length=MAX_PARTITIONS_PER_REQUEST)]
    forwarded: bool = False
    """Set by the broker that passes it on: it goes no further."""


class ProducedPartition(msgspec.Struct, array_like=True, frozen=True):
    """How one batch fared. `error` is empty, or a code of `raftlog.errors.CODES`."""

    topic_id: TopicIdBytes
    partition: PartitionNumber
    error: str = ""
    detail: str = ""
    base_offset: int = -1
    log_append_time_ms: int = -1
    """Where the topic has `message.timestamp.type=LogAppendTime`."""
    log_start_offset: int = -1
    leader: int = -1
    """With `not_leader`: who is thought to lead."""


class ProduceResponse(msgspec.Struct, array_like=True, frozen=True, tag="produced.1"):
    """Answers in the order of the request's partitions."""

    correlation_id: Natural
    partitions: list[ProducedPartition]


class FetchPartition(msgspec.Struct, array_like=True, frozen=True):
    """Where to read on in one partition."""

    topic_id: TopicIdBytes
    partition: PartitionNumber
    offset: Natural
    max_bytes: Natural
    current_leader_epoch: int = -1
    """-1: not checked. Otherwise a leader of another epoch refuses (KIP-320)."""


class FetchRequest(msgspec.Struct, array_like=True, frozen=True, tag="fetch.1"):
    """A long poll over many partitions: answered when `min_bytes` are there, something failed, or time is up."""

    correlation_id: Natural
    max_wait_ms: Natural
    min_bytes: Natural
    max_bytes: Natural
    partitions: Annotated[list[FetchPartition], msgspec.Meta(max_length=MAX_PARTITIONS_PER_REQUEST)]
    isolation: Annotated[int, msgspec.Meta(ge=0, le=1)] = 0
    """0 read_uncommitted: up to the high watermark; 1 read_committed: up to the last stable offset, and the answer says
    what of it is aborted (S13)."""
    forwarded: bool = False


class AbortedRange(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Every transactional batch of this producer id and epoch whose base offset is in [first, end) is aborted: who
    reads committed skips it. (Control batches are skipped by everybody.)"""

    producer_id: int
    producer_epoch: int
    first_offset: int
    end_offset: int


class FetchedPartition(msgspec.Struct, array_like=True, frozen=True):
    """What one partition gave: `length` bytes of whole batches, of which the first may begin below the offset asked."""

    topic_id: TopicIdBytes
    partition: PartitionNumber
    error: str = ""
    detail: str = ""
    high_watermark: int = -1
    last_stable_offset: int = -1
    """-1: this leader does not know it yet."""
    log_start_offset: int = -1
    leader_epoch: int = -1
    length: Natural = 0
    leader: int = -1
    aborted: list[AbortedRange] = []
    """With isolation 1: what of these batches is aborted; ranges may reach beyond them."""


class FetchResponse(msgspec.Struct, array_like=True, frozen=True, tag="fetched.1"):
    """Answers in the order of the request's partitions; the body holds their batches in that order."""

    correlation_id: Natural
    partitions: list[FetchedPartition]


class SlotToFetch(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Where to read on in one partition."""

    slot: Natural
    """Greater than all that this session has had."""
    topic_id: TopicIdBytes
    partition: PartitionNumber
    offset: Natural
    max_bytes: Natural
    current_leader_epoch: int = -1
    """-1: not checked. Otherwise a leader of another epoch refuses (KIP-320)."""


class SessionFetchRequest(msgspec.Struct, array_like=True, frozen=True, tag="session_fetch.1"):
    """A long poll over all slots of a session: answered when `min_bytes` are there, something failed, or time is up."""

    correlation_id: Natural
    session: Natural
    """Chosen by the client; of those of one stream no two are the same."""
    begins: bool
    """It is a new one, in place of any that the stream had. Otherwise it must be the stream's, or the answer is
    `unknown_fetch_session`, and nothing of the request is done."""
    max_wait_ms: Natural
    min_bytes: Natural
    max_bytes: Natural
    added: Annotated[list[SlotToFetch], msgspec.Meta(max_length=MAX_PARTITIONS_PER_REQUEST)] = []
    dropped: Annotated[list[Natural], msgspec.Meta(max_length=MAX_PARTITIONS_PER_REQUEST)] = []
    """Slots that are of no interest any more; those that are over already are passed over."""
    isolation: Annotated[int, msgspec.Meta(ge=0, le=1)] = 0
    """Of the session that begins, as in `fetch.1`."""


class FetchedSlot(msgspec.Struct, array_like=True, frozen=True):
    """What one slot gave. With batches or an error it is over; with neither it waits on, and its marks have moved."""

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
    """The slots that have something to tell; the body holds their batches in that order."""

    correlation_id: Natural
    slots: list[FetchedSlot]


class OffsetQuery(msgspec.Struct, array_like=True, frozen=True):
    """Which offset is asked for. `timestamp_ms`: -1 latest, -2 earliest, else the first record at or after it."""

    topic_id: TopicIdBytes
    partition: PartitionNumber
    timestamp_ms: Annotated[int, msgspec.Meta(ge=-2)]


class OffsetsRequest(msgspec.Struct, array_like=True, frozen=True, tag="offsets.1"):
    """Offsets by position or time, of many partitions."""

    correlation_id: Natural
    partitions: Annotated[list[OffsetQuery], msgspec.Meta(max_length=MAX_PARTITIONS_PER_REQUEST)]
    forwarded: bool = False
    isolation: Annotated[int, msgspec.Meta(ge=0, le=1)] = 0
    """1: the latest offset is the last stable one, and no record beyond it is found."""


class FoundOffset(msgspec.Struct, array_like=True, frozen=True):
    """-1 and -1: there is no record at or after that time."""

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
    """Records of one partition below the offset `before` go; -1: all below the high watermark."""

    topic_id: TopicIdBytes
    partition: PartitionNumber
    before: Annotated[int, msgspec.Meta(ge=-1, le=2**62)]


class DeleteRecordsRequest(msgspec.Struct, array_like=True, frozen=True, tag="delete_records.1"):
    """Answered when every in-sync replica has it on disk, at the latest after `timeout_ms`. Brokers pass it on to one
    another; clients ask the HTTP API."""

    correlation_id: Natural
    timeout_ms: Natural
    partitions: Annotated[list[DeleteRecordsPartition], msgspec.Meta(max_length=MAX_PARTITIONS_PER_REQUEST)]
    forwarded: bool = False


class DeletedPartition(msgspec.Struct, array_like=True, frozen=True):
    """Where one partition's records begin now."""

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
    """A member of a consumer group lives."""

    group_id: GroupName
    member_id: GroupName
    incarnation: Natural


class GroupHeartbeatsRequest(msgspec.Struct, array_like=True, frozen=True, tag="group_heartbeats.1"):
    """For the coordinator of groups. Brokers pass it on to one another; consumers ask the HTTP API."""

    correlation_id: Natural
    members: Annotated[list[GroupHeartbeat], msgspec.Meta(max_length=MAX_PARTITIONS_PER_REQUEST)]


class GroupHeartbeatsResponse(msgspec.Struct, array_like=True, frozen=True, tag="group_heartbeats_heard.1"):
    """In the order of the request: empty where it was heard, or a code of `raftlog.errors.CODES`."""

    correlation_id: Natural
    errors: list[str]


class ErrorResponse(msgspec.Struct, array_like=True, frozen=True, tag="error.1"):
    """The whole request was refused: it did not decode, or there was no room for it. `correlation_id` is -1 where the
    request's could not be read."""

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
"""What decoding raises: text that is not UTF-8 is a `ValueError`; what is nested too deep, even in a field that nobody
knows, a `RecursionError`."""


class _Tag(msgspec.Struct, array_like=True):
    """Of any message, only what it says that it is."""

    tag: str


_tag_decoder = msgspec.msgpack.Decoder(_Tag)
_REQUEST_TAGS = {tag.partition(".")[0]: tag for tag in (str(kind.__struct_config__.tag) for kind in get_args(Request))}
"""A request's name without its version → with the one that is spoken here."""


def encode(head: Request | Response, body: Sequence[Part] = ()) -> list[Part]:
    """The message as a list of parts; the body's parts are passed through, not copied."""
    packed = _encoder.encode(head)
    return [_HEAD_LENGTH.pack(len(packed)) + packed, *body]


def decode_request(message: Buffer) -> tuple[Request, memoryview]:
    """Head and body. Raises `InvalidRequest` for anything that is not a well-formed request: `unsupported_version` for
    one of another version than ours."""
    try:
        head, body = _split(message)
        if head.nbytes > MAX_REQUEST_HEAD_BYTES:
            raise ValueError(f"a head has at most {MAX_REQUEST_HEAD_BYTES} bytes, not {head.nbytes}")
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
            raise InvalidRequest("unsupported_version", f"{tag[:64]} is not spoken here, only {spoken}") from None
        raise


def decode_response(message: Buffer) -> tuple[Response, memoryview]:
    """Head and body. Raises `RemoteProtocolError` for anything that is not a well-formed answer."""
    try:
        head, body = _split(message)
        response = _response_decoder.decode(head)
        if _length_of_batches(response) not in (None, body.nbytes):
            raise ValueError("the lengths of the partitions do not add up to the body")
    except _MALFORMED as error:
        raise RemoteProtocolError(f"malformed answer: {error}") from None
    return response, body


def _length_of_batches(response: Response) -> int | None:
    """What a body must have; None where nobody says."""
    if isinstance(response, FetchResponse):
        return sum(p.length for p in response.partitions)
    if isinstance(response, SessionFetchResponse):
        return sum(s.length for s in response.slots)
    return None


def split_body(body: memoryview, lengths: Sequence[int]) -> list[memoryview]:
    """The body cut into pieces of these lengths, without copying."""
    pieces, start = [], 0
    for length in lengths:
        pieces.append(body[start : start + length])
        start += length
    return pieces


def message_length(parts: Sequence[Part]) -> int:
    """Bytes in a message."""
    return sum(part_length(part) for part in parts)


def _split(message: Buffer) -> tuple[memoryview, memoryview]:
    view = memoryview(message).cast("B")
    if not _HEAD_LENGTH.size <= view.nbytes <= MAX_WIRE_MESSAGE_BYTES:
        raise ValueError(f"{view.nbytes} bytes are no message")
    (length,) = _HEAD_LENGTH.unpack_from(view)
    start = _HEAD_LENGTH.size
    if length > view.nbytes - start:
        raise ValueError("the head is longer than the message")
    return view[start : start + length], view[start + length :]
