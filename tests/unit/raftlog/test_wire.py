"""Client messages: they survive encoding, can evolve, and invalid ones are refused."""

from __future__ import annotations

import contextlib
import json
import re
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.config import MAX_REQUEST_HEAD_BYTES, MAX_WIRE_MESSAGE_BYTES
from raftlog.errors import InvalidRequest, RemoteProtocolError
from raftlog.model import Offset, ProducerEpoch, ProducerId, TopicId, TopicPartition
from raftlog.transactions import TransactionKey
from raftlog.wire import (
    AbortedRange,
    AbortRequest,
    AssignedTopic,
    CommitOffsetsRequest,
    CommitRequest,
    CommittedOffset,
    DeletedPartition,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    ErrorResponse,
    FetchedPartition,
    FetchedSlot,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FoundOffset,
    GroupChangedResponse,
    GroupMoves,
    GroupOffsetsRequest,
    GroupOffsetsResponse,
    InitializeRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    MemberHeartbeatRequest,
    MembershipResponse,
    OffsetMove,
    OffsetQuery,
    OffsetsRequest,
    OffsetsResponse,
    OffsetToCommit,
    OpenBlockRequest,
    PositionMove,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ReleasedTopic,
    RemovePositionRequest,
    Request,
    Response,
    RetireBlockRequest,
    SessionFetchRequest,
    SessionFetchResponse,
    SlotToFetch,
    TopicEnds,
    TransactionOutput,
    TransactionResponse,
    decode_request,
    decode_response,
    encode,
    message_length,
    split_body,
)

TOPIC = bytes(range(16))
ABORTED = AbortedRange(7, 3, 3, 8)
KEY = TransactionKey(ProducerId(2**40), ProducerEpoch(3))
DOCUMENT = Path(__file__).parents[3] / "docs" / "wire.md"
REQUESTS: list[tuple[Request, bytes]] = [
    (
        ProduceRequest(1, -1, 30_000, [ProducePartition(TOPIC, 0, 3), ProducePartition(TOPIC, 1, 2, resent=True)]),
        b"abcde",
    ),
    (FetchRequest(2, 500, 1, 1 << 20, [FetchPartition(TOPIC, 0, 2**40, 1 << 20, 7)], isolation=1), b""),
    (SessionFetchRequest(5, 3, True, 500, 1, 1 << 20, [SlotToFetch(9, TOPIC, 0, 2**40, 1 << 20, 7)], [8], 1), b""),
    (OffsetsRequest(3, [OffsetQuery(TOPIC, 2**31 - 1, -2)], forwarded=True), b""),
    (DeleteRecordsRequest(4, 500, [DeleteRecordsPartition(TOPIC, 1, -1)]), b""),
    (JoinGroupRequest(6, "g", "m", "i", "app", ["t"], "a.*", "range", 9_000, 300_000), b""),
    (MemberHeartbeatRequest(7, "g", "m", 2**40, 9, [ReleasedTopic(TOPIC, [0, 2**31 - 1])]), b""),
    (LeaveGroupRequest(8, "g", "m", 2**40), b""),
    (
        CommitOffsetsRequest(9, "g", "", 0, 0, [OffsetToCommit(TOPIC, 1, 2**40, 7, "at"), OffsetToCommit(TOPIC, 2, 5)]),
        b"",
    ),
    (GroupOffsetsRequest(10, "g"), b""),
    (InitializeRequest(11, "app", 60_000, b"attempt-number-1", KEY), b""),
    (OpenBlockRequest(12, "b", 32, 60_000), b""),
    (RetireBlockRequest(13, "b"), b""),
    (
        CommitRequest(
            14,
            (TransactionOutput.of(KEY, {TopicPartition(TopicId(TOPIC), n): Offset(2**40 + n) for n in (3, 1)}),),
            (GroupMoves("g", "m", 2**40, 9, (OffsetMove(TopicId(TOPIC), 0, -1, Offset(5), 7, "at"),)),),
            (PositionMove("p", -1, 2**40),),
            "b",
            30_000,
        ),
        b"",
    ),
    (AbortRequest(15, (KEY,)), b""),
    (RemovePositionRequest(16, "p", 2**40), b""),
]
RESPONSES: list[tuple[Response, bytes]] = [
    (ProduceResponse(1, [ProducedPartition(TOPIC, 0, base_offset=5), ProducedPartition(TOPIC, 1, "not_leader")]), b""),
    (FetchResponse(2, [FetchedPartition(TOPIC, 0, high_watermark=9, length=4, aborted=[ABORTED])]), b"abcd"),
    (SessionFetchResponse(5, [FetchedSlot(9, high_watermark=9, length=4, aborted=[ABORTED])]), b"abcd"),
    (OffsetsResponse(3, [FoundOffset(TOPIC, 0, offset=4, timestamp_ms=5)]), b""),
    (DeleteRecordsResponse(4, [DeletedPartition(TOPIC, 1, log_start_offset=7)]), b""),
    (
        MembershipResponse(7, 2**40, 9, "Stable", [AssignedTopic(TOPIC, "t", [1])], [AssignedTopic(TOPIC, "t", [0])]),
        b"",
    ),
    (GroupChangedResponse(8), b""),
    (GroupOffsetsResponse(10, [CommittedOffset(TOPIC, "t", 1, 2**40, 7, "at")]), b""),
    (TransactionResponse(14, (KEY,), 32, True), b""),
    (ErrorResponse(-1, "overloaded", "too many"), b""),
]

GOLDEN = [
    "0000004397a970726f647563652e3101ffcd75309296c410000102030405060708090a0b0c0d0e0f0003c2a0ff96c41000010203040506070809"
    "0a0b0c0d0e0f0102c3a0ffc2c26162636465",
    "0000003998a766657463682e3102cd01f401ce001000009195c410000102030405060708090a0b0c0d0e0f00cf0000010000000000ce00100000"
    "0701c2",
    "000000459aaf73657373696f6e5f66657463682e310503c3cd01f401ce00100000919609c410000102030405060708090a0b0c0d0e0f00cf0000"
    "010000000000ce0010000007910801",
    "0000002895a96f6666736574732e31039193c410000102030405060708090a0b0c0d0e0fce7ffffffffec300",
    "0000002d95b064656c6574655f7265636f7264732e3104cd01f49193c410000102030405060708090a0b0c0d0e0f01ffc2",
    "0000002e9bac6a6f696e5f67726f75702e3106a167a16da169a361707091a174a3612e2aa572616e6765cd2328ce000493e0",
    "0000003e97b26d656d6265725f6865617274626561742e3107a167a16dcf0000010000000000099192c410000102030405060708090a0b0c0d"
    "0e0f9200ce7fffffff",
    "0000001d95ad6c656176655f67726f75702e3108a167a16dcf0000010000000000",
    "0000005197b0636f6d6d69745f6f6666736574732e3109a167a000009295c410000102030405060708090a0b0c0d0e0f01cf00000100000000"
    "0007a2617495c410000102030405060708090a0b0c0d0e0f0205ffa0",
    "0000001493af67726f75705f6f6666736574732e310aa167",
    "0000003c96b5696e697469616c697a655f70726f64756365722e310ba3617070cdea60c410617474656d70742d6e756d6265722d3192cf00"
    "0001000000000003",
    "0000001595ac6f70656e5f626c6f636b2e310ca16220cdea60",
    "0000001393ae7265746972655f626c6f636b2e310da162",
    "0000008c97b5636f6d6d69745f7472616e73616374696f6e732e310e9193cf0000010000000000039193c410000102030405060708090a0b"
    "0c0d0e0f92010392cf0000010000000001cf00000100000000039195a167a16dcf0000010000000000099196c41000010203040506070809"
    "0a0b0c0d0e0f00ff0507a261749193a170ffcf0000010000000000a162cd7530",
    "0000002393b461626f72745f7472616e73616374696f6e732e310f9192cf000001000000000003",
    "0000001f94b172656d6f76655f706f736974696f6e2e3110a170cf0000010000000000",
    "0000004f94aa70726f64756365642e31019299c410000102030405060708090a0b0c0d0e0f00a0a005ffffffff99c41000010203040506070809"
    "0a0b0c0d0e0f01aa6e6f745f6c6561646572a0ffffffffff00",
    "0000003094a9666574636865642e3102919bc410000102030405060708090a0b0c0d0e0f00a0a009ffffff04ff9194070303080061626364",
    "0000002694b173657373696f6e5f666574636865642e3105919a09a0a009ffffff04ff9194070303080061626364",
    "0000002d93af6f6666736574735f666f756e642e31039198c410000102030405060708090a0b0c0d0e0f00a0a00405ffff",
    "0000002d93b17265636f7264735f64656c657465642e31049196c410000102030405060708090a0b0c0d0e0f01a0a007ff",
    "0000005097ac6d656d626572736869702e3107cf000001000000000009a6537461626c659193c410000102030405060708090a0b0c0d0e0fa1"
    "7491019193c410000102030405060708090a0b0c0d0e0fa1749100",
    "0000001292af67726f75705f6368616e6765642e3108",
    "0000003c93b567726f75705f6f6666736574735f666f756e642e310a9196c410000102030405060708090a0b0c0d0e0fa17401cf0000010000"
    "00000007a26174",
    "0000002795b67472616e73616374696f6e5f616e7377657265642e310e9192cf00000100000000000320c3",
    "0000001e94a76572726f722e31ffaa6f7665726c6f61646564a8746f6f206d616e79",
]
"""Of the requests and responses above. Clients of every age send these bytes: they never change."""
FETCHED = len(REQUESTS) + 1
"""Position of the first response with a body."""

WITH_FEWER_FIELDS = [
    (
        ProduceRequest(1, -1, 30_000, [ProducePartition(TOPIC, 0, 3), ProducePartition(TOPIC, 1, 2, resent=True)]),
        "0000003f97a970726f647563652e3101ffcd75309294c410000102030405060708090a0b0c0d0e0f0003c294c41000010203040506070809"
        "0a0b0c0d0e0f0102c3c2c26162636465",
    ),
    (
        ProduceRequest(1, -1, 30_000, [ProducePartition(TOPIC, 0, 3), ProducePartition(TOPIC, 1, 2, resent=True)]),
        "0000003e96a970726f647563652e3101ffcd75309294c410000102030405060708090a0b0c0d0e0f0003c294c410000102030405060708090a"
        "0b0c0d0e0f0102c3c26162636465",
    ),
    (
        ProduceRequest(1, -1, 30_000, [ProducePartition(TOPIC, 0, 3), ProducePartition(TOPIC, 1, 2)]),
        "0000003c96a970726f647563652e3101ffcd75309293c410000102030405060708090a0b0c0d0e0f000393c410000102030405060708090a"
        "0b0c0d0e0f0102c26162636465",
    ),
    (
        OffsetsRequest(3, [OffsetQuery(TOPIC, 2**31 - 1, -2)], forwarded=True),
        "0000002794a96f6666736574732e31039193c410000102030405060708090a0b0c0d0e0fce7ffffffffec3",
    ),
    (
        FetchResponse(2, [FetchedPartition(TOPIC, 0, high_watermark=9, length=4)]),
        "0000002993a9666574636865642e3102919ac410000102030405060708090a0b0c0d0e0f00a0a009ffffff04ff61626364",
    ),
    (
        FetchResponse(2, [FetchedPartition(TOPIC, 0, high_watermark=9, length=4, aborted=[ABORTED])]),
        "0000002f93a9666574636865642e3102919bc410000102030405060708090a0b0c0d0e0f00a0a009ffffff04ff91940703030861626364",
    ),
    (
        ProduceResponse(1, [ProducedPartition(TOPIC, 0, base_offset=5), ProducedPartition(TOPIC, 1, "not_leader")]),
        "0000004d94aa70726f64756365642e31019298c410000102030405060708090a0b0c0d0e0f00a0a005ffffff98c410000102030405060708"
        "090a0b0c0d0e0f01aa6e6f745f6c6561646572a0ffffffff00",
    ),
    (
        ProduceResponse(1, [ProducedPartition(TOPIC, 0, base_offset=5)]),
        "0000002893aa70726f64756365642e31019198c410000102030405060708090a0b0c0d0e0f00a0a005ffffff",
    ),
]
"""The bytes of peers from before transactions, marked resends, quotas, restored batches, or idempotency keys."""


def message(head: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">I", len(head)) + head + body


def pack(*fields: Any, body: bytes = b"") -> bytes:
    return message(msgspec.msgpack.encode(fields), body)


@pytest.mark.parametrize(("sent", "golden"), list(zip(REQUESTS + RESPONSES, GOLDEN, strict=True)))
def test_a_message_survives_encoding_and_keeps_its_bytes(sent: tuple[Any, bytes], golden: str) -> None:
    head, body = sent
    parts = encode(head, [body])
    content = b"".join(map(bytes, parts))  # type: ignore[arg-type]
    assert content.hex() == golden
    assert message_length(parts) == len(content)
    decode: Any = decode_request if isinstance(head, Request) else decode_response
    assert decode(content) == (head, body)


@pytest.mark.parametrize(("meant", "golden"), WITH_FEWER_FIELDS)
def test_a_message_with_fewer_fields_is_read(meant: Any, golden: str) -> None:
    decode: Any = decode_request if isinstance(meant, Request) else decode_response
    assert decode(bytes.fromhex(golden))[0] == meant


def documented() -> list[list[tuple[str, str]]]:
    """The fields of every row of the document's tables."""
    rows = [line for line in DOCUMENT.read_text().splitlines() if line.startswith(("| `", "| entry"))]
    return [re.findall(r"`([a-z_]+)`(?: = (\S+?))?(?=[, ])", row.split("|")[2]) for row in rows]


def test_the_document_names_every_field_and_default() -> None:
    kinds = (
        *(ProduceRequest, ProducePartition, FetchRequest, FetchPartition),
        *(SessionFetchRequest, SlotToFetch, OffsetsRequest, OffsetQuery),
        *(DeleteRecordsRequest, DeleteRecordsPartition),
        *(JoinGroupRequest, MemberHeartbeatRequest, ReleasedTopic, LeaveGroupRequest),
        *(CommitOffsetsRequest, OffsetToCommit, GroupOffsetsRequest),
        *(InitializeRequest, OpenBlockRequest, RetireBlockRequest, CommitRequest, TransactionOutput, TopicEnds),
        *(GroupMoves, OffsetMove, PositionMove, AbortRequest, RemovePositionRequest),
        *(ProduceResponse, ProducedPartition, FetchResponse, FetchedPartition, AbortedRange),
        *(SessionFetchResponse, FetchedSlot),
        *(OffsetsResponse, FoundOffset),
        *(DeleteRecordsResponse, DeletedPartition),
        *(MembershipResponse, AssignedTopic, GroupChangedResponse, GroupOffsetsResponse, CommittedOffset),
        *(TransactionResponse, ErrorResponse),
    )
    expected = [
        [
            (f.name, "" if f.required else "[]" if f.default_factory is list else json.dumps(f.default))
            for f in msgspec.structs.fields(kind)
        ]
        for kind in kinds
    ]
    assert documented() == expected


def test_a_body_is_split_without_a_copy() -> None:
    content = bytes.fromhex(GOLDEN[0])
    _, body = decode_request(content)
    pieces = split_body(body, [3, 2])
    assert pieces == [b"abc", b"de"] and all(piece.obj is content for piece in pieces)


def test_fields_of_a_newer_peer_are_ignored() -> None:
    newer = pack("fetch.1", 2, 500, 1, 9, [[TOPIC, 0, 5, 9, -1, "new", {"new": 1}]], 0, False, "new", [1, 2])
    request, _ = decode_request(newer)
    assert request == FetchRequest(2, 500, 1, 9, [FetchPartition(TOPIC, 0, 5, 9)])
    answer, _ = decode_response(pack("offsets_found.1", 3, [[TOPIC, 0]], "new"))
    assert answer == OffsetsResponse(3, [FoundOffset(TOPIC, 0)])


@pytest.mark.parametrize("tag", ["produce.2", "fetch.0", "offsets.17"])
def test_another_version_is_named(tag: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{tag} is not supported") as caught:
        decode_request(pack(tag, 1, {"as": "it likes"}))
    assert caught.value.code == "unsupported_version"


def test_the_first_error_is_reported() -> None:
    with pytest.raises(InvalidRequest, match="length <= 10000"):
        decode_request(message(b"\x93\xa9offsets.1\x01\xdd\xff\xff\xff\xff"))


DEEP = b"\x91" * 100_000 + b"\xc0"
BAD_HEADS: dict[str, bytes] = {
    "no bytes": b"",
    "nil": b"\xc0",
    "an unknown message": msgspec.msgpack.encode(["steal.1", 1]),
    "no tag": msgspec.msgpack.encode([1, 2, 3]),
    "a field too few": msgspec.msgpack.encode(["fetch.1", 1, 2, 3]),
    "acks of 2": msgspec.msgpack.encode(["produce.1", 1, 2, 3, []]),
    "a topic id of 15 bytes": msgspec.msgpack.encode(["offsets.1", 1, [[TOPIC[1:], 0, -1]]]),
    "a topic id of text": msgspec.msgpack.encode(["offsets.1", 1, [["0123456789abcdef", 0, -1]]]),
    "a partition below 0": msgspec.msgpack.encode(["offsets.1", 1, [[TOPIC, -1, -1]]]),
    "a group without a name": msgspec.msgpack.encode(["group_offsets.1", 1, ""]),
    "a member with a long name": msgspec.msgpack.encode(["leave_group.1", 1, "g", "m" * 256, 7]),
    "a session of no time": msgspec.msgpack.encode(["join_group.1", 1, "g", "m", "", "", [], "", "", 999, 9_000]),
    "an offset below 0": msgspec.msgpack.encode(["commit_offsets.1", 1, "g", "m", 7, 9, [[TOPIC, 0, -1]]]),
    "too long metadata": msgspec.msgpack.encode(
        ["commit_offsets.1", 1, "g", "m", 7, 9, [[TOPIC, 0, 1, -1, "x" * 1025]]]
    ),
    "a transactional id without a name": msgspec.msgpack.encode(["initialize_producer.1", 1, "", 60_000]),
    "an attempt of 15 bytes": msgspec.msgpack.encode(["initialize_producer.1", 1, "app", 60_000, bytes(15)]),
    "a key of one number": msgspec.msgpack.encode(["abort_transactions.1", 1, [[7]]]),
    "an epoch of 2^15": msgspec.msgpack.encode(["abort_transactions.1", 1, [[7, 2**15]]]),
    "an end offset below 0": msgspec.msgpack.encode(["commit_transactions.1", 1, [[7, 3, [[TOPIC, [0], [-1]]]]]]),
    "a surplus field in an output": msgspec.msgpack.encode(["commit_transactions.1", 1, [[7, 3, [], 0]]]),
    "a wait of a minute": msgspec.msgpack.encode(["commit_transactions.1", 1, [], [], [], "", 60_000]),
    "a timestamp of -3": msgspec.msgpack.encode(["offsets.1", 1, [[TOPIC, 0, -3]]]),
    "too many partitions": msgspec.msgpack.encode(["offsets.1", 1, [[TOPIC, 0, -1]] * 10_001]),
    "an array of 2^32 - 1": b"\x93\xa9offsets.1\x01\xdd\xff\xff\xff\xff",
    "text that is not UTF-8": b"\x93\xa9offsets.\xff\x01\x90",
    "bytes behind it": msgspec.msgpack.encode(["offsets.1", 1, []]) + b"\0",
    "arrays in arrays": DEEP,
    "arrays in arrays where nobody looks": b"\x95\xa9offsets.1\x01\x90\xc2" + DEEP,
    "arrays in arrays in another version": b"\x92\xa9offsets.2" + DEEP,
}


@pytest.mark.parametrize("name", BAD_HEADS)
def test_an_invalid_head_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="malformed request") as caught:
        decode_request(message(BAD_HEADS[name]))
    assert caught.value.code == "invalid_request"
    with pytest.raises(RemoteProtocolError, match="malformed answer"):
        decode_response(message(BAD_HEADS[name]))


def test_an_answer_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="malformed answer"):
        decode_response(message(b"\x95\xa7error.1\x01\xa0\xa0" + DEEP))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "0 bytes cannot be a message"),
        (b"\0\0\0", "3 bytes cannot be a message"),
        (struct.pack(">I", 5) + b"head", "the head is longer than the message"),
        (b"\xff" * 8, "the head is longer than the message"),
        (bytes(MAX_WIRE_MESSAGE_BYTES + 1), "bytes cannot be a message"),
        (bytes.fromhex(GOLDEN[0])[:-1], "do not add up"),
        (bytes.fromhex(GOLDEN[0]) + b"?", "do not add up"),
    ],
)
def test_a_truncated_message_is_refused(content: bytes, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        decode_request(content)


def test_an_answers_lengths_must_match_its_body() -> None:
    with pytest.raises(RemoteProtocolError, match="do not add up"):
        decode_response(bytes.fromhex(GOLDEN[FETCHED])[:-1])
    with pytest.raises(RemoteProtocolError, match="do not add up"):
        decode_response(bytes.fromhex(GOLDEN[FETCHED + 1])[:-1])


@given(st.binary(max_size=200), st.sampled_from(GOLDEN), st.integers(0, 300), st.integers(0, 8))
def test_any_bytes_are_a_message_or_refused(noise: bytes, golden: str, at: int, cut: int) -> None:
    content = bytes.fromhex(golden)
    at = min(at, len(content))
    for candidate in (noise, message(noise), content[:at] + noise + content[at + cut :]):
        with contextlib.suppress(InvalidRequest):
            decode_request(candidate)
        with contextlib.suppress(RemoteProtocolError):
            decode_response(candidate)


def test_a_head_that_is_too_long_is_refused_before_it_is_parsed() -> None:
    """S11. It would block the event loop; the largest useful request fits."""
    biggest = ProduceRequest(2**62, -1, 2**62, [ProducePartition(TOPIC, 2**31 - 1, 0)] * 10_000, forwarded=True)
    message = b"".join(map(bytes, encode(biggest)))  # type: ignore[arg-type]
    assert decode_request(message)[0] == biggest
    padded = message[4:] + bytes(MAX_REQUEST_HEAD_BYTES)
    with pytest.raises(InvalidRequest, match="the head may have at most"):
        decode_request(struct.pack(">I", len(padded)) + padded)
