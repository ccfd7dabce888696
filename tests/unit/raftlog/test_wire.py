"""Messages of clients: they come back as they went, room to grow is there, and what is none is refused."""

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
from raftlog.wire import (
    AbortedRange,
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
    OffsetQuery,
    OffsetsRequest,
    OffsetsResponse,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    Request,
    Response,
    SessionFetchRequest,
    SessionFetchResponse,
    SlotToFetch,
    decode_request,
    decode_response,
    encode,
    message_length,
    split_body,
)

TOPIC = bytes(range(16))
ABORTED = AbortedRange(7, 3, 3, 8)
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
]
RESPONSES: list[tuple[Response, bytes]] = [
    (ProduceResponse(1, [ProducedPartition(TOPIC, 0, base_offset=5), ProducedPartition(TOPIC, 1, "not_leader")]), b""),
    (FetchResponse(2, [FetchedPartition(TOPIC, 0, high_watermark=9, length=4, aborted=[ABORTED])]), b"abcd"),
    (SessionFetchResponse(5, [FetchedSlot(9, high_watermark=9, length=4, aborted=[ABORTED])]), b"abcd"),
    (OffsetsResponse(3, [FoundOffset(TOPIC, 0, offset=4, timestamp_ms=5)]), b""),
    (DeleteRecordsResponse(4, [DeletedPartition(TOPIC, 1, log_start_offset=7)]), b""),
    (ErrorResponse(-1, "overloaded", "too many"), b""),
]

GOLDEN = [
    "0000003e96a970726f647563652e3101ffcd75309294c410000102030405060708090a0b0c0d0e0f0003c294c410000102030405060708090a0b"
    "0c0d0e0f0102c3c26162636465",
    "0000003998a766657463682e3102cd01f401ce001000009195c410000102030405060708090a0b0c0d0e0f00cf0000010000000000ce00100000"
    "0701c2",
    "000000459aaf73657373696f6e5f66657463682e310503c3cd01f401ce00100000919609c410000102030405060708090a0b0c0d0e0f00cf0000"
    "010000000000ce0010000007910801",
    "0000002895a96f6666736574732e31039193c410000102030405060708090a0b0c0d0e0fce7ffffffffec300",
    "0000002d95b064656c6574655f7265636f7264732e3104cd01f49193c410000102030405060708090a0b0c0d0e0f01ffc2",
    "0000004c93aa70726f64756365642e31019298c410000102030405060708090a0b0c0d0e0f00a0a005ffffff98c410000102030405060708090a"
    "0b0c0d0e0f01aa6e6f745f6c6561646572a0ffffffff",
    "0000002f93a9666574636865642e3102919bc410000102030405060708090a0b0c0d0e0f00a0a009ffffff04ff91940703030861626364",
    "0000002593b173657373696f6e5f666574636865642e3105919a09a0a009ffffff04ff91940703030861626364",
    "0000002d93af6f6666736574735f666f756e642e31039198c410000102030405060708090a0b0c0d0e0f00a0a00405ffff",
    "0000002d93b17265636f7264735f64656c657465642e31049196c410000102030405060708090a0b0c0d0e0f01a0a007ff",
    "0000001e94a76572726f722e31ffaa6f7665726c6f61646564a8746f6f206d616e79",
]
"""Of the requests and responses above. Clients of every age speak these bytes: they never change."""

WITH_FEWER_FIELDS = [
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
]
"""What peers write that know of no transactions, or of no marked resends."""


def message(head: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">I", len(head)) + head + body


def pack(*fields: Any, body: bytes = b"") -> bytes:
    return message(msgspec.msgpack.encode(fields), body)


@pytest.mark.parametrize(("sent", "golden"), list(zip(REQUESTS + RESPONSES, GOLDEN, strict=True)))
def test_a_message_comes_back_and_keeps_its_bytes(sent: tuple[Any, bytes], golden: str) -> None:
    head, body = sent
    parts = encode(head, [body])
    content = b"".join(map(bytes, parts))  # type: ignore[arg-type]
    assert content.hex() == golden
    assert message_length(parts) == len(content)
    decode: Any = decode_request if isinstance(head, Request) else decode_response
    assert decode(content) == (head, body)


@pytest.mark.parametrize(("meant", "golden"), WITH_FEWER_FIELDS)
def test_what_was_written_with_fewer_fields_is_read(meant: Any, golden: str) -> None:
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
        *(ProduceResponse, ProducedPartition, FetchResponse, FetchedPartition, AbortedRange),
        *(SessionFetchResponse, FetchedSlot),
        *(OffsetsResponse, FoundOffset),
        *(DeleteRecordsResponse, DeletedPartition),
        ErrorResponse,
    )
    expected = [
        [
            (f.name, "[]" if f.default_factory is list else "" if f.required else json.dumps(f.default))
            for f in msgspec.structs.fields(kind)
        ]
        for kind in kinds
    ]
    assert documented() == expected


def test_a_body_is_cut_without_a_copy() -> None:
    content = bytes.fromhex(GOLDEN[0])
    _, body = decode_request(content)
    pieces = split_body(body, [3, 2])
    assert pieces == [b"abc", b"de"] and all(piece.obj is content for piece in pieces)


def test_fields_of_a_newer_peer_are_passed_over() -> None:
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


def test_what_is_wrong_first_is_said() -> None:
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
def test_a_head_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="malformed request") as caught:
        decode_request(message(BAD_HEADS[name]))
    assert caught.value.code == "invalid_request"
    with pytest.raises(RemoteProtocolError, match="malformed answer"):
        decode_response(message(BAD_HEADS[name]))


def test_an_answer_that_is_too_deep_is_refused() -> None:
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
def test_a_message_that_is_cut_is_refused(content: bytes, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        decode_request(content)


def test_an_answer_s_lengths_add_up() -> None:
    with pytest.raises(RemoteProtocolError, match="do not add up"):
        decode_response(bytes.fromhex(GOLDEN[6])[:-1])
    with pytest.raises(RemoteProtocolError, match="do not add up"):
        decode_response(bytes.fromhex(GOLDEN[7])[:-1])


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
    """S11. It would hold the event loop; the most that a request can need fits."""
    biggest = ProduceRequest(2**62, -1, 2**62, [ProducePartition(TOPIC, 2**31 - 1, 0)] * 10_000, forwarded=True)
    message = b"".join(map(bytes, encode(biggest)))  # type: ignore[arg-type]
    assert decode_request(message)[0] == biggest
    padded = message[4:] + bytes(MAX_REQUEST_HEAD_BYTES)
    with pytest.raises(InvalidRequest, match="the head may have at most"):
        decode_request(struct.pack(">I", len(padded)) + padded)
