"""Unread answers hold little memory, and do not delay other readers (S11)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import tracemalloc
from collections.abc import AsyncIterator, Iterator

import msgspec
import pytest
import pytest_asyncio

from http_api.web.limits import Limits
from raftlog.config import MIB
from raftlog.records.batch import Codec, encode
from tests.support.client.fake_broker import FakeBroker
from tests.support.http.api_client import Api, eventually, running_api

pytestmark = pytest.mark.integration

READ = "/v1/topics/t/partitions/0/records"
BOMB = f"{READ}?max_bytes=16777216"
READERS = 24
WHOLE = {"Accept-Encoding": "identity"}


@pytest_asyncio.fixture
async def api() -> AsyncIterator[Api]:
    broker = FakeBroker()
    broker.add_topic("t", 1)
    broker.add_topic("small", 1)
    # Some hundred stored bytes; each byte of a value is an escape of six characters in JSON.
    values: list[bytes | None] = [b"\x01" * 100_000] * 100
    broker.append("t", encode(values, base_timestamp_ms=1, codec=Codec.ZSTD))
    broker.append("small", encode([b"honest"], base_timestamp_ms=1))
    async with running_api(broker) as running:
        yield running


@contextlib.contextmanager
def unread(api: Api, path: str, *, connections: int = 1, requests: int = 1) -> Iterator[None]:
    """Send requests on connections, and read nothing."""
    with contextlib.ExitStack() as stack:
        for _ in range(connections):
            sock = stack.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", api.port))
            sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * requests)
        yield


async def test_readers_that_do_not_read_hold_little_of_what_their_pages_become(api: Api) -> None:
    """60 MB of JSON each; an honest read is served meanwhile."""
    tracemalloc.start()
    try:
        with unread(api, BOMB, connections=READERS):
            await eventually(lambda: api.context.requests_under_way == READERS)
            for _ in range(20):
                async with asyncio.timeout(5):
                    answer = await api.get("/v1/topics/small/partitions/0/records")
                assert answer.document["records"][0]["value"] == "honest"
                await asyncio.sleep(0.05)
            held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 100 * MIB, f"{READERS} readers hold {held / MIB:.0f} MiB"
    assert most < 250 * MIB, f"{READERS} readers held {most / MIB:.0f} MiB"
    await eventually(lambda: api.context.requests_under_way == 0)


@pytest.mark.parametrize("accepts", ["identity", "gzip"])
async def test_a_large_page_arrives_whole(api: Api, accepts: str) -> None:
    answer = await api.get(BOMB, headers={"Accept-Encoding": accepts})
    document = answer.document
    assert [record["value"] for record in document["records"]] == ["\x01" * 100_000] * 100
    assert document["next_offset"] == 100 == int(answer.headers["X-Raftlog-Next-Offset"])
    lines = await api.get(BOMB, headers={"Accept": "application/x-ndjson", "Accept-Encoding": accepts})
    assert [msgspec.json.decode(line) for line in lines.body.splitlines()] == document["records"]


async def test_requests_behind_an_unread_answer_are_not_served(api: Api) -> None:
    """The requests of one connection are served one after the other, and only some wait."""
    served = 0
    describe = api.broker.fetch

    async def counted(request: object) -> object:
        nonlocal served
        served += 1
        return await describe(request)  # type: ignore[arg-type]

    api.broker.fetch = counted  # type: ignore[method-assign,assignment]
    with unread(api, BOMB, requests=500):
        await eventually(lambda: served == 1)
        for _ in range(10):
            await api.get("/v1/topics/small/partitions/0/records")
        assert served == 1 + 10


async def test_short_answers_that_nobody_reads_are_counted_and_bounded() -> None:
    """Answers below the size of a page were held until a deadline, and counted nowhere."""
    broker = FakeBroker()
    broker.add_topic("t", 1)
    broker.health_now = msgspec.structs.replace(broker.health_now, problems=["x" * 1_000] * 500)
    async with running_api(broker, limits=Limits(max_held_bytes=1_000_000)) as api:
        size = len((await api.get("/openapi.json", headers=WHOLE)).body)
        assert 50_000 < size < 400_000
        with unread(api, "/openapi.json", connections=30, requests=31):
            await eventually(lambda: api.context.held_bytes > 1_000_000 - size)
            (await api.get("/openapi.json", headers=WHOLE)).problem("overloaded")
            assert api.context.held_bytes <= 1_000_000
            healthy = await api.get("/v1/health", headers=WHOLE)
            assert healthy.status == 503 and len(healthy.body) > size, "monitoring gets an answer"
            produced = await api.post("/v1/topics/t/records", {"records": [{"value": "a"}]})
            assert produced.status in (200, 503)
        await eventually(lambda: api.context.held_bytes == 0)
        assert (await api.get("/openapi.json", headers=WHOLE)).status == 200
        await api.is_well()


async def test_the_bytes_that_an_answer_is_made_of_are_not_counted_beside_it() -> None:
    broker = FakeBroker()
    broker.add_topic("t", 1)
    broker.append("t", encode([b"x" * 60_000], base_timestamp_ms=1))
    async with running_api(broker, limits=Limits(max_held_bytes=150_000)) as api:
        answer = await api.get(READ, headers=WHOLE)
        assert answer.status == 200 and len(answer.body) > 60_000


async def test_the_batch_of_a_page_is_held_no_longer_than_its_reader_is_quick(api: Api) -> None:
    """It takes 10 MB decoded; a slice of its page takes a fraction of that."""
    await api.get(BOMB, headers=WHOLE)
    tracemalloc.start()
    try:
        await api.get(BOMB, headers=WHOLE)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 8 * MIB, "the page was sent"
        with unread(api, BOMB):
            await eventually(lambda: api.context.requests_under_way == 1)
            await eventually(lambda: tracemalloc.get_traced_memory()[0] > 8 * MIB)
            await eventually(lambda: tracemalloc.get_traced_memory()[0] < 8 * MIB)
            assert api.context.requests_under_way == 1
    finally:
        tracemalloc.stop()


async def test_the_answer_to_a_change_is_told_whatever_others_hold() -> None:
    broker = FakeBroker()
    broker.add_topic("t", 1)
    async with running_api(broker, limits=Limits(max_held_bytes=20_000)) as api:
        records = {"records": [{"value": "a"} for _ in range(900)]}
        answer = await api.post("/v1/topics/t/records?offsets=each", records, headers=WHOLE)
        assert answer.status == 200 and len(answer.body) > 20_000, answer
        assert broker.appended("t") == 1, "one batch of all"
        await api.is_well()
