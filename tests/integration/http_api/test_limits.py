"""Bounds on what clients may make a node hold: requests, connections, bytes, time; and an orderly end."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import aiohttp
import pytest

from http_api.web.context import ApiContext
from http_api.web.hosts import HostPolicy
from http_api.web.limits import OFFLOAD_BYTES, Limits
from raftlog.api.cluster import HealthInfo
from tests.support.client.fake_broker import FakeBroker
from tests.support.http.api_client import PATIENCE_S, Answer, Api, eventually, running_api

pytestmark = pytest.mark.integration

RECORDS = "/v1/topics/t/records"
POLL = "/v1/topics/t/partitions/0/records?offset=latest&max_wait_ms=60000"


def broker() -> FakeBroker:
    made = FakeBroker()
    made.add_topic("t", 1)
    return made


async def test_requests_beyond_the_bound_are_told_to_come_back_and_health_is_answered_always() -> None:
    async with running_api(broker(), limits=Limits(max_concurrent_requests=2)) as api:
        polls = [asyncio.create_task(api.get(POLL)) for _ in range(2)]
        await eventually(lambda: api.broker.fetches_waiting == 2)
        told = (await api.get("/v1/topics")).problem("overloaded")
        assert "2 requests" in told["detail"]
        assert (await api.get("/v1/health")).status == 200
        assert (await api.get("/v1/ready")).status == 200
        for poll in polls:
            poll.cancel()
        await eventually(lambda: api.context.requests_under_way == 0)
        assert (await api.get("/v1/topics")).status == 200


async def test_one_caller_does_not_use_up_the_requests_in_progress() -> None:
    async with running_api(broker(), limits=Limits(max_concurrent_requests=4, max_requests_of_caller=2)) as api:
        polls = [asyncio.create_task(api.get(POLL)) for _ in range(2)]
        await eventually(lambda: api.broker.fetches_waiting == 2)
        told = (await api.get("/v1/topics")).problem("overloaded")
        assert "2 requests of" in told["detail"]
        for poll in polls:
            poll.cancel()
        await eventually(lambda: api.context.requests_under_way == 0)
        assert (await api.get("/v1/topics")).status == 200


async def test_connections_beyond_the_bound_are_told_to_come_back() -> None:
    async with running_api(broker(), limits=Limits(max_connections=3)) as api:
        held = [await asyncio.open_connection("127.0.0.1", api.port) for _ in range(3)]
        for _, writer in held:
            writer.write(f"GET {POLL} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await eventually(lambda: api.broker.fetches_waiting == 3)
        reader, refused = await asyncio.open_connection("127.0.0.1", api.port)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b'"code":"overloaded"' in answer
        for _, writer in (*held, (reader, refused)):
            writer.transport.abort()
        await asyncio.sleep(0)
        await eventually_answers(api)


async def eventually_answers(api: Api) -> None:
    async with asyncio.timeout(10):
        request = b"GET /v1/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        while b"200 OK" not in await api.raw(request):  # noqa: ASYNC110 - a connection's end is seen by asking
            await asyncio.sleep(0.01)


async def test_bodies_of_all_requests_together_are_bounded() -> None:
    made = broker()
    made.hang.clear()
    async with running_api(made, limits=Limits(max_held_bytes=1_000_000)) as api:
        first = asyncio.create_task(api.post(RECORDS, b"x" * 700_000, "application/octet-stream"))
        await eventually(lambda: len(made.produced) == 1)
        (await api.post(RECORDS, b"x" * 700_000, "application/octet-stream")).problem("overloaded")
        made.hang.set()
        assert (await first).status == 200
        assert (await api.post(RECORDS, b"x" * 700_000, "application/octet-stream")).status == 200
        await api.is_well()


async def test_one_caller_does_not_use_up_the_memory_for_bodies() -> None:
    made = broker()
    made.hang.clear()
    limits = Limits(max_held_bytes=2_000_000, max_held_bytes_of_caller=1_000_000)
    async with running_api(made, limits=limits) as api:
        first = asyncio.create_task(api.post(RECORDS, b"x" * 700_000, "application/octet-stream"))
        await eventually(lambda: len(made.produced) == 1)
        told = (await api.post(RECORDS, b"x" * 700_000, "application/octet-stream")).problem("overloaded")
        assert "the caller's other requests" in told["detail"]
        elsewhere = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))
        async with aiohttp.ClientSession(f"http://127.0.0.1:{api.port}", connector=elsewhere) as session:
            headers = {"Content-Type": "application/octet-stream"}
            other = asyncio.create_task(session.post(RECORDS, data=b"x" * 700_000, headers=headers))
            await eventually(lambda: len(made.produced) == 2)
            made.hang.set()
            assert (await other).status == 200
        assert (await first).status == 200
        await api.is_well()


async def test_what_a_write_holds_is_counted_until_it_ends_although_its_client_left() -> None:
    made = broker()
    made.hang.clear()
    async with running_api(made, limits=Limits(max_held_bytes=1_000_000)) as api:
        left = asyncio.create_task(api.post(RECORDS, b"x" * 700_000, "application/octet-stream"))
        await eventually(lambda: len(made.produced) == 1)
        left.cancel()
        await eventually(lambda: api.context.requests_under_way == 0)
        (await api.post(RECORDS, b"x" * 700_000, "application/octet-stream")).problem("overloaded")
        made.hang.set()
        await api.is_well()
        assert (await api.post(RECORDS, b"x" * 700_000, "application/octet-stream")).status == 200


async def test_writes_that_their_clients_left_are_bounded() -> None:
    made = broker()
    made.hang.clear()
    async with running_api(made, limits=Limits(max_concurrent_requests=2)) as api:
        for count in (1, 2):
            left = asyncio.create_task(api.post(RECORDS, b"x", "application/octet-stream"))
            await eventually(lambda: len(made.produced) == count)  # noqa: B023 - awaited before it changes
            left.cancel()
            await eventually(lambda: api.context.requests_under_way == 0)
        (await api.post(RECORDS, b"x", "application/octet-stream")).problem("overloaded")
        assert len(made.produced) == 2
        made.hang.set()
        await api.is_well()
        await eventually(lambda: made.appended("t") == 2)
        assert (await api.post(RECORDS, b"x", "application/octet-stream")).status == 200


async def test_codec_threads_have_a_bounded_queue() -> None:
    async with running_api(broker(), limits=Limits(codec_threads=1, codec_queue=1)) as api:
        busy = threading.Event()
        run = api.context.threads.run
        try:
            held = [asyncio.create_task(run(OFFLOAD_BYTES + 1, busy.wait, 10)) for _ in range(2)]
            await asyncio.sleep(0)
            lines = b"x" * 100 + b"\n"
            (await api.post(RECORDS, lines * 20_000, "text/plain")).problem("overloaded")
            assert (await api.post(RECORDS, lines, "text/plain")).status == 200
        finally:
            busy.set()
        assert await asyncio.gather(*held) == [True, True]
        assert (await api.post(RECORDS, lines * 20_000, "text/plain")).status == 200
        await api.is_well()


async def test_a_body_that_keeps_coming_has_more_time() -> None:
    async def steadily() -> Any:
        for _ in range(8):
            yield b"x" * 1000
            await asyncio.sleep(0.05)

    limits = Limits(body_timeout_s=0.1, body_min_bytes_per_s=10_000)
    async with running_api(broker(), limits=limits) as api:
        answer = await api.post(RECORDS, steadily(), "application/octet-stream")
        assert answer.status == 200


async def test_a_connection_that_sends_no_whole_header_is_closed() -> None:
    async with running_api(broker(), limits=Limits(keepalive_timeout_s=0.2)) as api:
        assert await api.raw(b"GET /v1/topics HT") == b""
        assert await api.raw(b"") == b""
        kept = await api.raw(b"GET /v1/ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert kept.startswith(b"HTTP/1.1 200 OK")


async def test_a_reader_of_records_that_stops_loses_its_connection() -> None:
    from raftlog.records.batch import encode

    made = broker()
    limits = Limits(write_timeout_s=0.2, write_min_bytes_per_s=1 << 30)
    async with running_api(made, limits=limits) as api:
        for _ in range(12):
            made.append("t", encode([b"x" * 1_000_000], base_timestamp_ms=1))
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", api.port))
        path = "/v1/topics/t/partitions/0/records?max_bytes=16777216"
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        try:
            await eventually(lambda: api.context.held_bytes > 10_000_000)
            await eventually(lambda: api.context.held_bytes == 0)
            await eventually(lambda: api.connections == 0)
        finally:
            client.close()
        await api.is_well()


async def test_closing_ends_long_polls_and_refuses_what_comes_after() -> None:
    made = broker()
    async with running_api(made, limits=Limits(shutdown_timeout_s=5)) as api:
        poll = asyncio.create_task(api.get(POLL))
        await eventually(lambda: made.fetches_waiting == 1)
        api.context.stop_taking_requests()
        answer: Answer = await poll
        answer.problem("shutting_down")
        (await api.get("/v1/topics")).problem("shutting_down")
        assert (await api.get("/v1/health")).status == 200
        assert made.health_now == HealthInfo(True, [])
        ready = await api.get("/v1/ready")
        assert (ready.status, ready.document["ready"]) == (503, False)


async def test_a_write_under_way_is_finished_before_the_api_closes() -> None:
    made = broker()
    made.hang.clear()
    async with running_api(made) as api:
        write = asyncio.create_task(api.post(RECORDS, {"records": [{"value": "last"}]}))
        await eventually(lambda: len(made.produced) == 1)
        closing = asyncio.create_task(api.runner.cleanup())
        await eventually(lambda: api.context.closing)
        made.hang.set()
        assert (await write).status == 200
        await closing
    assert made.appended("t") == 1


WAITING = (
    b"POST /v1/topics/t/records HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 32\r\nExpect: 100-continue\r\n\r\n"
)


async def test_a_body_that_arrives_while_the_api_closes_is_still_taken() -> None:
    made = broker()
    async with running_api(made) as api:
        reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
        other_reader, other = await asyncio.open_connection("127.0.0.1", api.port)
        writer.write(WAITING)
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        closing = asyncio.create_task(api.runner.cleanup())
        await eventually(lambda: api.context.closing)
        other.write(b"GET /v1/topics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await other_reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 503 "), "no further request"
        writer.write(b'{"records": [{"value": "late"}]}')
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        await closing
        for one in (writer, other):
            one.close()
    assert made.appended("t") == 1


async def test_a_body_that_never_arrives_delays_the_end_by_a_bounded_time() -> None:
    made = broker()
    async with running_api(made, limits=Limits(shutdown_timeout_s=0.05)) as api:
        reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
        writer.write(WAITING)
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        async with asyncio.timeout(PATIENCE_S):
            await api.runner.cleanup()
        writer.close()
    assert made.appended("t") == 0


async def test_closing_at_the_very_moment_when_a_long_polls_time_is_up() -> None:
    context = ApiContext(broker(), HostPolicy.of((), ()), Limits())
    raised: list[RuntimeError] = []

    def stop() -> None:
        try:
            context.stop_taking_requests()
        except RuntimeError as error:
            raised.append(error)

    deadline = asyncio.timeout(0)
    context.polls.add(deadline)
    with pytest.raises(TimeoutError):
        async with deadline:
            asyncio.get_running_loop().call_soon(stop)  # After the time is up, before the poll hears of it.
            await asyncio.Event().wait()
    assert context.closing and raised == []
    await context.close()
