"""Bad input of every kind: each is an error that names the fault, nothing is appended, the server goes on."""

from __future__ import annotations

import asyncio
import gzip
import os
import random
import zlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from http_api.web.limits import SMALL_BODY_BYTES, Limits
from raftlog.config import MAX_REQUEST_HEAD_BYTES
from raftlog.wire import CONTENT_TYPE
from tests.support.client.fake_broker import FakeBroker
from tests.support.http.api_client import Answer, Api, running_api

pytestmark = pytest.mark.integration

RECORDS = "/v1/topics/t/records"
MIB = 1 << 20
ONE = {"records": [{"value": 1}]}


@pytest_asyncio.fixture
async def api() -> AsyncIterator[Api]:
    broker = FakeBroker()
    broker.add_topic("t", 2)
    limits = Limits(body_timeout_s=0.3, body_min_bytes_per_s=1 << 30, linger_s=0.2, max_body_bytes=4 * MIB)
    async with running_api(broker, limits=limits, allowed_origins=["https://console.example"]) as running:
        yield running
        assert broker.appended("t") == 0
        assert broker.produced == []
        await running.is_well()


def raw_answer(received: bytes) -> Answer:
    """One HTTP/1.1 answer taken apart."""
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    names = {"x-request-id": "X-Request-Id", "content-type": "Content-Type", "retry-after": "Retry-After"}
    headers = {}
    for line in lines:
        name, _, value = line.partition(": ")
        headers[names.get(name.lower(), name)] = value
    return Answer(int(first.split()[1]), headers, body)


@pytest.mark.parametrize("seed", range(20))
async def test_random_bytes_to_the_port(api: Api, seed: int) -> None:
    noise = random.Random(seed).randbytes(2000).replace(b"\n", b"") + b"\r\n\r\n"
    raw_answer(await api.raw(noise)).problem("invalid_request")


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"G{}T / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /v1/topics HTTP/1.1\r\nHost localhost\r\n\r\n",
        b"GET /v1/topics HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n",
        b"GET /v1/topics HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 9000 + b"\r\n\r\n",
        b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(200)) + b"\r\n",
        b"POST /v1/topics HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/topics HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS hello \r\n\r\n",
    ],
    ids=lambda request: repr(request[:24]),
)
async def test_bytes_that_are_no_http(api: Api, request_bytes: bytes) -> None:
    raw_answer(await api.raw(request_bytes)).problem("invalid_request")


async def test_a_request_without_or_with_two_hosts(api: Api) -> None:
    end = b"Connection: close\r\n\r\n"
    for hosts in (b"", b"Host: localhost\r\nHost: localhost\r\n"):
        raw_answer(await api.raw(b"GET /v1/topics HTTP/1.1\r\n" + hosts + end)).problem("invalid_request")
    foreign = b"GET /v1/topics HTTP/1.0\r\nOrigin: http://evil.example\r\n\r\n"
    raw_answer(await api.raw(foreign)).problem("invalid_request")
    assert (await api.raw(b"GET /v1/ready HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.0 200 ")


@pytest.mark.parametrize("path", ["/v1/topics", "/v1/health", "/nope", "/openapi.json"])
async def test_another_host_is_refused_everywhere(api: Api, path: str) -> None:
    for host in ("evil.example", "localhost.evil.example:80", "", "localhost evil"):
        told = raw_answer(
            await api.raw(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        ).problem("host_not_allowed")
        assert "allowed_hosts" in told["detail"]


async def test_a_page_of_another_origin_is_refused_everywhere(api: Api) -> None:
    for origin in ("http://evil.example", "null", f"http://127.0.0.1:{api.port + 1}", "https://console.example.evil"):
        for method, path in (("GET", "/v1/topics"), ("POST", RECORDS), ("DELETE", "/v1/topics/t"), ("GET", "/nope")):
            told = (await api.call(method, path, headers={"Origin": origin})).problem("origin_not_allowed")
            assert origin in told["detail"]
    assert api.broker.view.topic("t") is not None


async def test_allowed_origins_may_use_the_api_from_a_browser(api: Api) -> None:
    own = await api.get("/v1/topics", headers={"Origin": f"http://127.0.0.1:{api.port}"})
    assert own.status == 200
    headers = {"Origin": "https://console.example"}
    other = await api.get("/v1/topics", headers=headers)
    assert other.headers["Access-Control-Allow-Origin"] == "https://console.example"
    assert "X-Raftlog-Next-Offset" in other.headers["Access-Control-Expose-Headers"]
    preflight = await api.call(
        "OPTIONS",
        RECORDS,
        headers={**headers, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"},
    )
    assert preflight.status == 204
    assert "POST" in preflight.headers["Access-Control-Allow-Methods"]
    assert preflight.headers["Access-Control-Allow-Headers"] == "content-type"
    foreign = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    (await api.call("OPTIONS", RECORDS, headers=foreign)).problem("origin_not_allowed")
    (await api.call("OPTIONS", RECORDS)).problem("method_not_allowed")


async def test_paths_and_methods_that_are_not_there(api: Api) -> None:
    for path in ("/v1", "/v1/topics/", "/v1/topics/t/", "/v2/topics", "/v1//topics", "/%2e%2e/etc/passwd"):
        assert (await api.get(path)).problem("not_found")
    for method, path in (
        ("PUT", "/v1/topics"),
        ("POST", "/v1/topics/t"),
        ("GET", "/v1/produce"),
        ("HEAD", "/v1/topics"),
    ):
        answer = await api.call(method, path)
        assert answer.status == 405
        assert answer.headers["Allow"]
    told = (await api.call("DELETE", "/v1/topics")).problem("method_not_allowed")
    assert "GET, POST" in told["detail"]


@pytest.mark.parametrize(
    "media_type",
    [
        "text/csv",
        "application/x-www-form-urlencoded",
        "application/json; charset=utf-16",
        "json",
        "multipart/form-data",
    ],
)
async def test_another_content_type(api: Api, media_type: str) -> None:
    (await api.post(RECORDS, ONE, media_type)).problem("unsupported_media_type")
    (await api.post("/v1/topics", {"name": "x"}, media_type)).problem("unsupported_media_type")
    assert api.broker.view.topic("x") is None


async def test_no_content_type(api: Api) -> None:
    request = f"POST {RECORDS} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{{}}"
    raw_answer(await api.raw(request.encode())).problem("unsupported_media_type")


@pytest.mark.parametrize("encoding", ["br", "gzip, gzip", "compress", "gzip;q=1", "zstd, gzip", "x"])
async def test_another_content_encoding(api: Api, encoding: str) -> None:
    answer = await api.post(RECORDS, ONE, headers={"Content-Encoding": encoding})
    answer.problem("unsupported_media_type")
    assert "gzip" in answer.headers["Accept-Encoding"]


async def test_encodings_in_several_header_lines(api: Api) -> None:
    head = (
        f"POST {RECORDS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\nConnection: close\r\n"
    )
    for first in ("identity", "gzip"):
        twice = f"{head}Content-Encoding: {first}\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nxx"
        raw_answer(await api.raw(twice.encode())).problem("unsupported_media_type")


async def test_a_transfer_coding_that_is_not_undone(api: Api) -> None:
    """Only `chunked` is: what would be left is not what the client meant."""
    head = f"POST {RECORDS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    coded = f"{head}Transfer-Encoding: gzip, chunked\r\n\r\n2\r\nxx\r\n0\r\n\r\n"
    told = raw_answer(await api.raw(coded.encode())).problem("invalid_request")
    assert "Transfer-Encoding" in told["detail"]


async def chunks(size: int, count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield b"x" * size


@pytest.mark.parametrize(
    ("path", "media_type", "most"),
    [
        (RECORDS, "application/json", 4 * MIB),
        ("/v1/topics", "application/json", SMALL_BODY_BYTES),
        ("/v1/topics/t/partitions", "application/json", SMALL_BODY_BYTES),
        ("/v1/producers", "application/json", SMALL_BODY_BYTES),
        ("/v1/fetch", CONTENT_TYPE, MAX_REQUEST_HEAD_BYTES),
        ("/v1/offsets", CONTENT_TYPE, MAX_REQUEST_HEAD_BYTES),
    ],
)
async def test_a_body_that_is_too_large_is_refused_announced_or_not(
    api: Api, path: str, media_type: str, most: int
) -> None:
    announced = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {media_type}\r\n"
    received = await api.raw(f"{announced}Content-Length: {most + 1}\r\n\r\n".encode() + b"{")
    told = raw_answer(received).problem("body_too_large")
    assert f" {most} bytes" in told["detail"]
    (await api.post(path, chunks(64 * 1024, 1 + most // (64 * 1024)), media_type)).problem("body_too_large")


async def test_a_body_that_is_too_large_is_refused_before_it_is_sent_where_the_client_asks(api: Api) -> None:
    head = f"POST {RECORDS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
    large = f"{head}Content-Length: {5 * MIB}\r\nExpect: 100-continue\r\n\r\n"
    received = await api.raw(large.encode())
    assert b"100 Continue" not in received
    raw_answer(received).problem("body_too_large")
    foreign = large.replace(f"{5 * MIB}", "9").replace("Host: localhost", "Host: evil.example\r\nConnection: close")
    received = await api.raw(foreign.encode())
    assert b"100 Continue" not in received
    raw_answer(received).problem("host_not_allowed")
    strange = f"{head}Content-Length: 1\r\nExpect: a-miracle\r\nConnection: close\r\n\r\nx"
    raw_answer(await api.raw(strange.encode())).problem("invalid_request")
    missing = f"{head}Content-Length: 1\r\nExpect: a-miracle\r\nConnection: close\r\n\r\nx".replace(RECORDS, "/nope")
    raw_answer(await api.raw(missing.encode())).problem("invalid_request")


@pytest.mark.parametrize(("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
@pytest.mark.parametrize("path", [RECORDS, "/v1/topics"])
async def test_a_decompression_bomb(api: Api, path: str, encoding: str, compress: Any) -> None:
    bomb = compress(bytes(200 * MIB), 9)
    assert len(bomb) < 300_000
    (await api.post(path, bomb, headers={"Content-Encoding": encoding})).problem("body_too_large")
    assert api.context.held_bytes < 10 * MIB


async def test_compressed_bodies_that_are_ruined(api: Api) -> None:
    good = gzip.compress(msgspec.json.encode(ONE))
    for body in (b"", good[:-3], b"not gzip", good + b"tail", os.urandom(100)):
        (await api.post(RECORDS, body, headers={"Content-Encoding": "gzip"})).problem("invalid_request")


async def slowly(pieces: int) -> AsyncIterator[bytes]:
    for _ in range(pieces):
        yield b" "
        await asyncio.sleep(0.05)


async def test_a_body_that_trickles_is_given_up(api: Api) -> None:
    answer = await api.post(RECORDS, slowly(100))
    told = answer.problem("slow_request")
    assert "bytes of the body had arrived" in told["detail"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"nul", b'{"records":[{"value":1}]} {}', b'{"records":[{"value":"\xff"}]}', b"\x00" * 50]
)
async def test_json_that_is_none_or_another(api: Api, body: bytes) -> None:
    answer = await api.post(RECORDS, body)
    assert answer.status == 400
    answer.problem(answer.document["code"])


@pytest.mark.parametrize("depth", [2_000, 1_000_000])
async def test_json_that_is_too_deep(api: Api, depth: int) -> None:
    deep = b"[" * depth + b"]" * depth
    (await api.post(RECORDS, b'{"records":[{"value":' + deep + b"}]}")).problem("invalid_json")
    (await api.post(RECORDS, b'{"value":' + deep + b"}", "application/x-ndjson")).problem("invalid_json")
    (await api.post(RECORDS, deep)).problem("invalid_request")
    code = "invalid_request" if len(deep) < SMALL_BODY_BYTES - 100 else "body_too_large"
    (await api.post("/v1/topics", b'{"name":' + deep + b"}")).problem(code)


async def test_one_bad_record_refuses_the_whole_request(api: Api) -> None:
    good: dict[str, Any] = {"value": "fine", "partition": 0}
    for bad, code in (
        ({"value": 1, "partition": 2}, "unknown_partition"),
        ({"value": 1, "partition": -1}, "unknown_partition"),
        ({"value": 1, "partition": 2**70}, "unknown_partition"),
        ({"value": 1, "timestamp": -5}, "timestamp_out_of_range"),
        ({"value": 1, "timestamp": 2**63}, "timestamp_out_of_range"),
        ({"value": 1, "timestamp": 2**80}, "timestamp_out_of_range"),
        ({"value": 1, "timestamp": 2**62, "partition": 1}, "timestamp_out_of_range"),
        ({"value": {"base64": "%"}}, "invalid_request"),
        ({"value": 1, "extra": 1}, "invalid_request"),
        ({"key": 1}, "invalid_request"),
        ({"value": "x" * (MIB + 1)}, "batch_too_large"),
    ):
        (await api.post(RECORDS, {"records": [good] * 3 + [bad]})).problem(code)
        lines = b"\n".join(map(msgspec.json.encode, [good] * 3 + [bad]))
        (await api.post(RECORDS, lines, "application/x-ndjson")).problem(code)


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("acks=2", "invalid_request"),
        ("acks=", "invalid_request"),
        ("timeout_ms=0", "invalid_request"),
        ("timeout_ms=300001", "invalid_request"),
        ("timeout_ms=1s", "invalid_request"),
        ("offsets=some", "invalid_request"),
        ("partition=x", "invalid_request"),
        ("partition=2", "unknown_partition"),
        ("partition=0&partition=1", "invalid_request"),
        ("key=a", "invalid_request"),
        ("header=a=b", "invalid_request"),
        ("ack=all", "invalid_request"),
    ],
)
async def test_a_query_that_cannot_be(api: Api, query: str, code: str) -> None:
    told = (await api.post(f"{RECORDS}?{query}", ONE)).problem(code)
    assert query.partition("=")[0] in told["detail"] or code == "unknown_partition" or query in {"key=a", "header=a=b"}


@pytest.mark.parametrize(
    ("query", "headers", "code"),
    [
        ("key=a&key_base64=YQ==", {}, "invalid_request"),
        ("key=a", {"X-Raftlog-Key": "a"}, "invalid_request"),
        ("partition=0", {"X-Raftlog-Partition": "0"}, "invalid_request"),
        ("key_base64=%25", {}, "invalid_request"),
        ("timestamp=-1", {}, "timestamp_out_of_range"),
        ("timestamp=9223372036854775808", {}, "timestamp_out_of_range"),
        ("", {"X-Raftlog-Timestamp": "later"}, "invalid_request"),
        ("", {"X-Raftlog-Partition": "+1"}, "invalid_request"),
        ("header=novalue", {}, "invalid_request"),
        ("", {"X-Raftlog-Header": "novalue"}, "invalid_request"),
    ],
)
async def test_octets_described_wrongly(api: Api, query: str, headers: dict[str, str], code: str) -> None:
    for media_type in ("application/octet-stream", "text/plain"):
        (await api.post(f"{RECORDS}?{query}", b"x", media_type, headers=headers)).problem(code)


async def test_headers_that_are_not_utf8(api: Api) -> None:
    head = f"POST {RECORDS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    request = head.encode() + b"X-Raftlog-Key: \xff\xfe\r\nContent-Length: 1\r\n\r\nx"
    raw_answer(await api.raw(request)).problem("invalid_request")


async def test_text_without_lines_and_octets_beyond_a_batch(api: Api) -> None:
    (await api.post(RECORDS, b"", "text/plain")).problem("invalid_request")
    (await api.post(RECORDS, b"\xff", "text/plain")).problem("invalid_request")
    (await api.post(RECORDS, b"x" * MIB, "application/octet-stream")).problem("batch_too_large")


async def test_chunks_that_are_none(api: Api) -> None:
    head = (
        f"POST {RECORDS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    raw_answer(await api.raw(head.encode() + b"zz\r\nhello\r\n0\r\n\r\n")).problem("invalid_request")


async def test_a_body_that_is_cut_off(api: Api) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", api.port)
    writer.write(f"POST {RECORDS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n".encode())
    writer.write(b"Content-Length: 100\r\n\r\nonly this")
    await writer.drain()
    writer.transport.abort()
