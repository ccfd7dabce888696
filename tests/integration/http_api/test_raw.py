"""Batches as they are over HTTP/1.1: many partitions a request, the same bytes back, by sendfile where that can be."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import os
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
import pytest_asyncio

import http_api.routes.fetch
from http_api.web.limits import Limits
from raftlog.model import TopicRecord
from raftlog.records.batch import RecordBatch, encode, parse_header, split_batches
from raftlog.wire import (
    CONTENT_TYPE,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    OffsetQuery,
    OffsetsRequest,
    OffsetsResponse,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    decode_response,
    split_body,
)
from raftlog.wire import encode as encode_message
from tests.support.client.fake_broker import FakeBroker
from tests.support.http.api_client import Answer, Api, eventually, running_api

pytestmark = pytest.mark.integration

Parts = Literal["memory", "file", "no descriptor"]


@pytest_asyncio.fixture(params=["memory", "file", "no descriptor"])
async def api(request: pytest.FixtureRequest) -> AsyncIterator[Api]:
    broker = FakeBroker(request.param)
    broker.add_topic("t", 3)
    async with running_api(broker) as running:
        yield running


def topic(api: Api) -> TopicRecord:
    found = api.broker.view.topic("t")
    assert found is not None
    return found


def batch(*values: bytes) -> bytes:
    return encode(list(values), base_timestamp_ms=1)


def message(head: Any, batches: Sequence[bytes] = ()) -> bytes:
    return b"".join(encode_message(head, batches))  # type: ignore[arg-type]


async def send(api: Api, path: str, body: bytes, **options: Any) -> Answer:
    return await api.post(path, body, CONTENT_TYPE, **options)


async def produce(api: Api, *batches: tuple[int, bytes], acks: int = -1) -> ProduceResponse:
    partitions = [ProducePartition(topic(api).topic_id, number, len(one)) for number, one in batches]
    body = message(ProduceRequest(41, acks, 5000, partitions), [one for _, one in batches])
    answer = await send(api, "/v1/produce", body)
    assert (answer.status, answer.headers["Content-Type"]) == (200, CONTENT_TYPE)
    response, rest = decode_response(answer.body)
    assert isinstance(response, ProduceResponse) and not rest.nbytes
    assert response.correlation_id == 41
    return response


def fetch_request(api: Api, *partitions: tuple[int, int], max_wait_ms: int = 0, max_bytes: int = 1 << 24) -> bytes:
    asked = [FetchPartition(topic(api).topic_id, number, offset, max_bytes) for number, offset in partitions]
    return message(FetchRequest(42, max_wait_ms, 1, max_bytes, asked))


async def test_batches_for_many_partitions_go_in_and_come_out_as_the_same_bytes(api: Api) -> None:
    sent = [(0, batch(b"a", b"b")), (2, batch(b"c")), (0, batch(b"d"))]
    produced = await produce(api, *sent)
    assert [(told.partition, told.base_offset, told.error) for told in produced.partitions] == [
        (0, 0, ""),
        (2, 0, ""),
        (0, 2, ""),
    ]
    answer = await send(api, "/v1/fetch", fetch_request(api, (2, 0), (1, 0), (0, 1)))
    assert answer.headers["Content-Type"] == CONTENT_TYPE
    response, body = decode_response(answer.body)
    assert isinstance(response, FetchResponse)
    assert response.correlation_id == 42
    assert [told.high_watermark for told in response.partitions] == [1, 0, 3]
    third, second, first = split_body(body, [told.length for told in response.partitions])
    assert not second
    assert [bytes(one)[16:] for one in split_batches(third)] == [sent[1][1][16:]]
    assert [bytes(one)[16:] for one in split_batches(first)] == [sent[0][1][16:], sent[2][1][16:]]
    assert [parse_header(one).base_offset for one in split_batches(first)] == [0, 2]


async def test_failures_are_told_for_each_partition(api: Api) -> None:
    corrupt = bytearray(batch(b"x"))
    corrupt[-1] ^= 1
    told = await produce(api, (0, batch(b"ok")), (1, bytes(corrupt)), (7, batch(b"nowhere")))
    assert [each.error for each in told.partitions] == ["", "corrupt_batch", "unknown_partition"]
    assert api.broker.appended("t") == 1
    answer = await send(api, "/v1/fetch", fetch_request(api, (0, 99), (7, 0), (0, 0)))
    response, _ = decode_response(answer.body)
    assert isinstance(response, FetchResponse)
    assert [each.error for each in response.partitions] == ["offset_out_of_range", "unknown_partition", ""]


async def test_offsets_of_many_partitions(api: Api) -> None:
    await produce(api, (1, batch(b"a", b"b")))
    queries = [OffsetQuery(topic(api).topic_id, 1, when) for when in (-1, -2, 0, 5)]
    answer = await send(api, "/v1/offsets", message(OffsetsRequest(43, queries)))
    response, _ = decode_response(answer.body)
    assert isinstance(response, OffsetsResponse)
    assert [(told.offset, told.timestamp_ms) for told in response.partitions] == [(2, -1), (0, -1), (0, 1), (-1, -1)]


async def test_a_long_poll_over_many_partitions(api: Api) -> None:
    polled = asyncio.create_task(send(api, "/v1/fetch", fetch_request(api, (0, 0), (1, 0), max_wait_ms=60_000)))
    await eventually(lambda: api.broker.fetches_waiting == 1)
    api.broker.append("t", batch(b"news"), 1)
    response, body = decode_response((await polled).body)
    assert isinstance(response, FetchResponse)
    assert RecordBatch(body).values() == [b"news"]
    assert [told.length > 0 for told in response.partitions] == [False, True]


async def test_waiting_and_size_of_a_fetch_are_bounded(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[FetchRequest] = []
    fetch = api.broker.fetch

    async def noted(request: FetchRequest) -> Any:
        asked.append(request)
        return await fetch(msgspec.structs.replace(request, max_wait_ms=0))

    monkeypatch.setattr(api.broker, "fetch", noted)
    await send(api, "/v1/fetch", fetch_request(api, (0, 0), max_wait_ms=10**9, max_bytes=10**12))
    assert (asked[0].max_wait_ms, asked[0].max_bytes) == (60_000, 16 * 1024 * 1024)


def bad_messages(api: Api) -> dict[str, bytes]:
    one = batch(b"x")
    good = message(ProduceRequest(1, -1, 5000, [ProducePartition(topic(api).topic_id, 0, len(one))]), [one])
    head = msgspec.msgpack.encode(["produce.1", 1, 7, 5000, []])
    return {
        "nothing": b"",
        "three bytes": b"\0\0\0",
        "a head longer than the message": b"\xff\xff\xff\xff" + good[4:],
        "random": os.urandom(500),
        "json": b'{"records":[]}',
        "a body longer than its lengths": good + b"more",
        "a body shorter than its lengths": good[:-1],
        "acks of 7": len(head).to_bytes(4, "big") + head,
        "another kind": fetch_request(api, (0, 0)),
        "an answer": message(ProduceResponse(1, [])),
        "a head without end": (2 << 20).to_bytes(4, "big") + head + bytes(2 << 20),
        "deep": b"\x00\x01\x00\x00" + b"\x91" * 65536,
    }


async def test_messages_that_are_none_are_refused_and_append_nothing(api: Api) -> None:
    for name, body in bad_messages(api).items():
        told = (await send(api, "/v1/produce", body)).problem("invalid_request")
        assert told["detail"], name
    good = message(ProduceRequest(1, -1, 5000, []))
    for path in ("/v1/fetch", "/v1/offsets"):
        (await send(api, path, good)).problem("invalid_request")
    for path in ("/v1/produce", "/v1/fetch", "/v1/offsets"):
        (await api.post(path, good, "application/json")).problem("unsupported_media_type")
        (await send(api, path + "?x=1", good)).problem("invalid_request")
    assert api.broker.appended("t") == 0
    await api.is_well()


async def test_lying_batch_headers_are_refused_and_append_nothing(api: Api) -> None:
    honest = batch(b"some value", b"another")
    for position in range(8, 61):
        lying = bytearray(honest)
        lying[position] ^= 0xFF
        told = await produce(api, (0, bytes(lying)))
        if 12 <= position < 16:
            # The leader epoch is the leader's to write, whatever a producer says: negative ones apart.
            assert told.partitions[0].error in {"", "corrupt_batch"}
        else:
            assert told.partitions[0].error == "corrupt_batch", position
    (await send(api, "/v1/produce", honest)).problem("invalid_request")
    await api.is_well()


def read_slowly(port: int, request: bytes) -> socket.socket:
    """A client that asks and then reads nothing."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    client.sendall(request)
    return client


@pytest.mark.parametrize("parts", ["memory", "file", "no descriptor"])
async def test_a_reader_that_stops_loses_its_connection_and_all_is_released(parts: Parts) -> None:
    broker = FakeBroker(parts)
    broker.add_topic("t", 1)
    limits = Limits(write_timeout_s=0.2, write_min_bytes_per_s=1 << 30)
    async with running_api(broker, limits=limits) as api:
        for _ in range(12):
            broker.append("t", batch(os.urandom(1_000_000)))
        body = fetch_request(api, (0, 0))
        head = f"POST /v1/fetch HTTP/1.1\r\nHost: localhost\r\nContent-Type: {CONTENT_TYPE}\r\n"
        client = read_slowly(api.port, f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        try:
            await eventually(lambda: api.context.requests_under_way == 1)
            await eventually(lambda: api.connections == 0)
            assert broker.regions_held == 0
        finally:
            client.close()
        await api.is_well()


@pytest.mark.parametrize("parts", ["memory", "file", "no descriptor"])
async def test_a_reader_that_leaves_in_the_middle(parts: Parts) -> None:
    broker = FakeBroker(parts)
    broker.add_topic("t", 1)
    async with running_api(broker) as api:
        for _ in range(12):
            broker.append("t", batch(os.urandom(1_000_000)))
        for _ in range(3):
            async with api.session.post(
                "/v1/fetch", data=fetch_request(api, (0, 0)), headers={"Content-Type": CONTENT_TYPE}
            ) as response:
                await response.content.readexactly(100_000)
                response.close()
            await eventually(lambda: api.context.requests_under_way == 0)
            assert broker.regions_held == 0
        await api.is_well()


async def test_a_file_that_is_too_short_cuts_the_connection_and_not_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = FakeBroker("file")
    broker.add_topic("t", 1)
    async with running_api(broker) as api:
        broker.append("t", batch(os.urandom(100_000)))
        part = broker.part

        def shortened(stored: bytes) -> Any:
            region = part(stored)
            os.ftruncate(region.file.fileno(), 1000)  # type: ignore[union-attr]
            return region

        monkeypatch.setattr(broker, "part", shortened)
        body = fetch_request(api, (0, 0))
        head = f"POST /v1/fetch HTTP/1.1\r\nHost: localhost\r\nContent-Type: {CONTENT_TYPE}\r\n"
        request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        try:
            answer = await api.raw(request)
        except ConnectionResetError:
            answer = b""
        assert len(answer) < 100_000
        await api.is_well()


async def test_regions_of_files_do_not_pass_through_python(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> bytes:
        raise AssertionError("read in Python")

    monkeypatch.setattr(http_api.routes.fetch, "read_region", refuse)
    broker = FakeBroker("file")
    broker.add_topic("t", 1)
    async with running_api(broker) as api:
        payload = os.urandom(3_000_000 // 4)
        for _ in range(4):
            broker.append("t", batch(payload))
        answer = await send(api, "/v1/fetch", fetch_request(api, (0, 0)))
        _, body = decode_response(answer.body)
        assert [RecordBatch(one).values() for one in split_batches(body)] == [[payload]] * 4


async def test_thousands_of_small_parts_are_sent_in_order_and_let_others_have_their_turn(api: Api) -> None:
    for number in range(3000):
        api.broker.log("t").append(batch(b"%d" % number))
    for large in (b"x" * 100_000, b"y" * 300_000):
        api.broker.append("t", batch(large))
    api.broker.append("t", batch(b"last"))
    answer = await send(api, "/v1/fetch", fetch_request(api, (0, 0)))
    _, body = decode_response(answer.body)
    values = [value for one in split_batches(body) for value in RecordBatch(one).values()]
    assert values == [*(b"%d" % number for number in range(3000)), b"x" * 100_000, b"y" * 300_000, b"last"]


async def test_several_fetches_on_one_connection_stay_in_order(api: Api) -> None:
    payloads = [os.urandom(200_000) for _ in range(4)]
    for payload in payloads:
        api.broker.append("t", batch(payload))
    request = b""
    for offset in range(4):
        body = fetch_request(api, (0, offset), max_bytes=1)
        head = f"POST /v1/fetch HTTP/1.1\r\nHost: localhost\r\nContent-Type: {CONTENT_TYPE}\r\n"
        close = "Connection: close\r\n" if offset == 3 else ""
        request += f"{head}{close}Content-Length: {len(body)}\r\n\r\n".encode() + body
    answer = await api.raw(request)
    assert answer.count(b"HTTP/1.1 200 OK") == 4
    positions = [answer.index(payload) for payload in payloads]
    assert positions == sorted(positions)


def certificate(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Contexts of a server and of a client that trusts it."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "node")])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = folder / "node.pem"
    pem.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + signed.public_bytes(serialization.Encoding.PEM)
    )
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(pem)
    return server, ssl.create_default_context(cafile=str(pem))


async def test_an_encrypted_connection_gets_the_same_bytes(tmp_path: Path) -> None:
    server, client = certificate(tmp_path)
    broker = FakeBroker("file")
    broker.add_topic("t", 1)
    async with running_api(broker, ssl_context=server, client_ssl=client) as api:
        payload = os.urandom(900_000)
        broker.append("t", batch(payload))
        answer = await send(api, "/v1/fetch", fetch_request(api, (0, 0)))
        _, body = decode_response(answer.body)
        assert RecordBatch(body).values() == [payload]
