"""Idle and unauthenticated connections to the API give way, and a proper client is served beside them (S10, S12)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from http_api.service.access import Authenticated
from http_api.web.limits import Limits
from raftlog.broker.security.access.request_access import OpenAccess
from raftlog.errors import InvalidRequest
from raftlog.security.presented import Presented
from tests.support.client.fake_broker import FakeBroker
from tests.support.http.api_client import Api, eventually, running_api

pytestmark = pytest.mark.integration

POLL = "/v1/topics/t/partitions/0/records?offset=latest&max_wait_ms=60000"
TOKEN = {"Authorization": "Bearer good"}
READY = b"GET /v1/ready HTTP/1.1\r\nHost: localhost\r\n\r\n"
FROM_ELSEWHERE = ("127.0.0.2", 0)


class NeedsToken(OpenAccess):
    """Access for one token only."""

    needs_credentials = True

    async def authenticate(self, presented: Presented) -> Authenticated:
        if presented.authorization is None or presented.authorization.reveal() != TOKEN["Authorization"]:
            raise InvalidRequest("unauthenticated", "a credential is needed")
        return await super().authenticate(presented)


def broker(*, secured: bool) -> FakeBroker:
    made = FakeBroker()
    made.add_topic("t", 1)
    if secured:
        access: Any = NeedsToken()
        made.access = access
    return made


@contextmanager
def idle(api: Api, count: int, sent: bytes = b"") -> Iterator[list[socket.socket]]:
    """Hold connections that send a few bytes each, and then nothing."""
    made = []
    try:
        for _ in range(count):
            made.append(socket.create_connection(("127.0.0.1", api.port)))
            made[-1].sendall(sent)
        yield made
    finally:
        for one in made:
            one.close()


def is_open(connection: socket.socket) -> bool:
    """Return whether the server has not ended a connection."""
    connection.setblocking(False)
    try:
        while data := connection.recv(65_536):
            assert data
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False
    return False


async def ask(api: Api, request: bytes = READY) -> bytes:
    """Ask from another address, over a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port, local_addr=FROM_ELSEWHERE)
    try:
        async with asyncio.timeout(10):
            writer.write(request)
            return await reader.readuntil(b"\r\n")
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("secured", [False, True], ids=["plain", "secured"])
@pytest.mark.parametrize("sent", [b"", b"GET /v1/topics HTTP/1.1\r\nHo", READY], ids=["silent", "half a head", "asked"])
async def test_hundreds_of_idle_connections_of_one_address_do_not_keep_others_out(secured: bool, sent: bytes) -> None:
    limits = Limits(max_connections=60, max_strangers=40, max_strangers_per_address=30)
    async with running_api(broker(secured=secured), limits=limits) as api:
        with idle(api, 300, sent) as held:
            await eventually(lambda: len(api.context.connections) >= (30 if secured else 45))
            for _ in range(20):
                assert await ask(api) == b"HTTP/1.1 200 OK\r\n"
            assert len(api.context.connections) <= 60
            await eventually(lambda: sum(is_open(one) for one in held) <= (30 if secured else 60))
            answer = await api.get("/v1/topics", headers=TOKEN)
            assert answer.status == 200


async def test_a_known_connection_outlives_the_strangers_and_serves_on() -> None:
    limits = Limits(max_connections=20, max_strangers=10, max_strangers_per_address=8)
    async with running_api(broker(secured=True), limits=limits) as api:
        assert (await api.get("/v1/topics", headers=TOKEN)).status == 200
        with idle(api, 100):
            await eventually(lambda: api.context.connections.strangers == 8)
            assert (await api.get("/v1/topics", headers=TOKEN)).status == 200
            await eventually(lambda: api.connections == 1 + 8)  # its second request came over its first connection


async def test_a_request_in_progress_is_not_cut() -> None:
    async with running_api(broker(secured=False), limits=Limits(max_connections=8)) as api:
        poll = asyncio.create_task(api.get("/v1/topics/t/partitions/0/records?offset=latest&max_wait_ms=1500"))
        await eventually(lambda: api.broker.fetches_waiting == 1)
        with idle(api, 100):
            assert (await poll).status == 200


async def test_a_stranger_is_cut_off_in_time_and_a_client_is_not() -> None:
    async with running_api(broker(secured=True), limits=Limits(stranger_timeout_s=0.4)) as api:
        assert (await api.get("/v1/topics", headers=TOKEN)).status == 200
        with idle(api, 10, READY) as held:
            await eventually(lambda: not any(is_open(one) for one in held))
        assert (await api.get("/v1/topics", headers=TOKEN)).status == 200
        assert api.connections == 1


async def test_a_stranger_may_not_send_much_without_being_looked_at() -> None:
    head = b"GET /v1/ready HTTP/1.1\r\nHost: localhost\r\n" + b"".join(
        b"X-%d: %b\r\n" % (number, b"a" * 4_000) for number in range(60)
    )
    limits = Limits(max_stranger_bytes=100_000, stranger_timeout_s=60.0)
    async with running_api(broker(secured=True), limits=limits) as api:
        with idle(api, 1, head) as held:
            await eventually(lambda: not is_open(held[0]))
        assert api.context.connections.waiting_bytes == 0
    async with running_api(broker(secured=False), limits=Limits(max_waiting_bytes=1_000_000)) as api:
        with idle(api, 20, head) as held:
            await eventually(lambda: 0 < sum(is_open(one) for one in held) <= 4)
            assert 0 < api.context.connections.waiting_bytes <= 1_000_000
            assert (await api.get("/v1/topics")).status == 200


async def test_requests_that_wait_behind_another_one_are_counted_and_served() -> None:
    ask = b"GET /v1/ready HTTP/1.1\r\nHost: localhost\r\nX-A: %b\r\n\r\n" % (b"a" * 7_000)
    async with running_api(broker(secured=False)) as api:
        with idle(api, 1, f"GET {POLL} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() + ask * 10) as held:
            await eventually(lambda: api.context.connections.waiting_bytes >= 10 * len(ask))
            held[0].shutdown(socket.SHUT_WR)
        await eventually(lambda: api.context.connections.waiting_bytes == 0)
        raw = await api.raw(ask * 9 + ask.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        assert raw.count(b"HTTP/1.1 200 OK") == 10
        await eventually(lambda: api.context.connections.waiting_bytes == 0)
