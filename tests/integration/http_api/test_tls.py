"""TLS of the API's listener: certificates of both sides, versions, plain clients, new files. S11, S12."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from http_api.app import start_api
from http_api.web.context import CONTEXT, ApiContext, wall_ms
from http_api.web.hosts import HostPolicy
from http_api.web.limits import Limits
from raftlog.broker.tls.node_tls import NodeTls
from raftlog.config import TlsConfig
from raftlog.errors import InvalidRequest
from raftlog.model import BrokerId
from raftlog.system import tls_door
from raftlog.system.clock import SystemClock
from tests.support.client.fake_broker import FakeBroker
from tests.support.clusters.tls import Authority, write
from tests.support.http.api_client import eventually

pytestmark = pytest.mark.integration

AUTHORITY = Authority()
OTHER = Authority()


@pytest.fixture
def tls(tmp_path: Path) -> NodeTls:
    config = write(tmp_path / "node", AUTHORITY, AUTHORITY.for_node("c1", 0))
    return NodeTls(config, "c1", BrokerId(0), SystemClock())


class Listener:
    """An API that tells each client which certificate it showed."""

    def __init__(self, port: int, refused: list[str]) -> None:
        self.port = port
        self.refused = refused

    async def get(self, context: ssl.SSLContext | None, path: str = "/who") -> Any:
        """Return the answer over a connection of its own."""
        scheme = "http" if context is None else "https"
        connector = aiohttp.TCPConnector(ssl=context or False, force_close=True)
        async with aiohttp.ClientSession(connector=connector) as session:
            timeout = aiohttp.ClientTimeout(total=10)
            async with session.get(f"{scheme}://127.0.0.1:{self.port}{path}", timeout=timeout) as answer:
                return answer.status, msgspec.json.decode(await answer.read())


@asynccontextmanager
async def listening(tls: NodeTls, limits: Limits | None = None, **options: Any) -> AsyncIterator[Listener]:
    async def who(request: web.Request) -> web.Response:
        shown = request.get_extra_info("peercert") or {}
        return web.json_response([value for _, value in shown.get("subjectAltName", ())])

    app = web.Application()
    broker = FakeBroker("memory")
    service: Any = broker
    app[CONTEXT] = ApiContext(service, HostPolicy.of((), ()), limits or Limits(), wall_ms)
    app.router.add_get("/who", who)
    refused: list[str] = []

    def on_refused(peer: str, error: Exception) -> None:
        refused.append(f"{peer}: {error}")
        tls.on_api_refused(peer, error)

    runner, port = await start_api(app, "127.0.0.1", 0, ssl_context=tls.api_context, on_refused=on_refused, **options)
    try:
        yield Listener(port, refused)
    finally:
        await runner.cleanup()
        broker.close()


def client(folder: Path, trusted: Authority = AUTHORITY, own: tuple[bytes, bytes] | None = None) -> ssl.SSLContext:
    """Return the context of a client that trusts an authority, and shows a certificate if it has one."""
    config = write(folder, trusted, own or AUTHORITY.sign("DNS:unused"))
    context = ssl.create_default_context(cafile=config.authority)
    if own is not None:
        context.load_cert_chain(config.certificate, config.key)
    return context


async def test_a_client_may_come_with_or_without_a_certificate(tls: NodeTls, tmp_path: Path) -> None:
    user = AUTHORITY.sign("URI:raftlog:/user/alice")
    async with listening(tls) as api:
        assert await api.get(client(tmp_path / "a")) == (200, [])
        assert await api.get(client(tmp_path / "b", own=user)) == (200, ["raftlog:/user/alice"])
        assert api.refused == []


@pytest.mark.parametrize(
    ("signer", "days", "why"),
    [(OTHER, 5.0, "unable to get local issuer"), (AUTHORITY, -1.0, "certificate has expired")],
)
async def test_a_certificate_that_the_authority_does_not_vouch_for_is_refused(
    tls: NodeTls, tmp_path: Path, signer: Authority, days: float, why: str
) -> None:
    stranger = signer.sign("URI:raftlog:/user/alice", days=days)
    async with listening(tls) as api:
        with pytest.raises((aiohttp.ClientError, ConnectionError)):
            await api.get(client(tmp_path, own=stranger))
        await eventually(lambda: bool(api.refused))
        assert why in api.refused[0]


async def test_a_client_refuses_a_node_of_a_foreign_authority(tls: NodeTls, tmp_path: Path) -> None:
    async with listening(tls) as api:
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await api.get(client(tmp_path, OTHER))
        assert await api.get(client(tmp_path / "b")) == (200, [])


@pytest.mark.parametrize(
    ("version", "accepted"),
    [
        (ssl.TLSVersion.TLSv1_3, True),
        (ssl.TLSVersion.TLSv1_2, True),
        (ssl.TLSVersion.TLSv1_1, False),
        (ssl.TLSVersion.TLSv1, False),
    ],
)
async def test_versions(tls: NodeTls, tmp_path: Path, version: ssl.TLSVersion, accepted: bool) -> None:
    context = client(tmp_path)
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning) if not accepted else nothing():
        context.minimum_version = context.maximum_version = version
    async with listening(tls) as api:
        if accepted:
            assert await api.get(context) == (200, [])
            return
        with pytest.raises(aiohttp.ClientError):
            await api.get(context)


@contextmanager
def nothing() -> Iterator[None]:
    yield


async def test_a_plain_client_is_told_so(tls: NodeTls) -> None:
    async with listening(tls) as api:
        status, problem = await api.get(None)
        assert status == 400 and problem["code"] == "invalid_request" and "https://" in problem["detail"]


async def test_one_port_can_serve_both(tls: NodeTls, tmp_path: Path) -> None:
    async with listening(tls, accepts_plain=True) as api:
        assert await api.get(None) == (200, [])
        assert await api.get(client(tmp_path)) == (200, [])


async def test_new_files_serve_the_next_connections_and_bad_ones_change_nothing(tls: NodeTls, tmp_path: Path) -> None:
    async with listening(tls) as api:
        old, new = client(tmp_path / "old"), client(tmp_path / "new", OTHER)
        assert await api.get(old) == (200, [])
        (tmp_path / "node" / "key.pem").write_text("no key")
        tls.look()
        assert await api.get(old) == (200, [])
        write(tmp_path / "node", OTHER, OTHER.for_node("c1", 0))
        tls.look()
        assert await api.get(new) == (200, [])
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await api.get(old)


async def test_the_api_may_have_a_certificate_of_its_own(tmp_path: Path) -> None:
    config = write(tmp_path / "node", AUTHORITY, AUTHORITY.for_node("c1", 0))
    public = write(tmp_path / "public", OTHER, OTHER.sign("IP:127.0.0.1"))
    both = msgspec.structs.replace(config, api_certificate=public.certificate, api_key=public.key)
    tls = NodeTls(both, "c1", BrokerId(0), SystemClock())
    user = AUTHORITY.sign("URI:raftlog:/user/alice")
    trusting = ssl.create_default_context(cafile=public.authority)
    trusting.load_cert_chain(*files(tmp_path / "user", user))
    async with listening(tls) as api:
        assert await api.get(trusting) == (200, ["raftlog:/user/alice"])
        write(tmp_path / "public", OTHER, OTHER.sign("IP:127.0.0.1", days=-1))
        tls.look()
        assert any("public/certificate.pem: certificate has expired" in line for line in tls.problems())
        write(tmp_path / "public", OTHER, OTHER.sign("IP:127.0.0.1", days=0.5))
        tls.look()
        assert await api.get(trusting) == (200, ["raftlog:/user/alice"])
        assert tls.problems() == [], "a certificate of half a day is renewed by a program"
    with pytest.raises(InvalidRequest, match="not a certificate and its key"):
        NodeTls(msgspec.structs.replace(both, api_key=config.key), "c1", BrokerId(0), SystemClock())


def files(folder: Path, signed: tuple[bytes, bytes]) -> tuple[str, str]:
    config: TlsConfig = write(folder, AUTHORITY, signed)
    return config.certificate, config.key


@pytest.mark.parametrize("sent", [b"", b"\x16", b"\x16\x03\x01\x00\x05hello", b"\x80\x2e\x01", b"\x00" * 100])
async def test_bytes_that_are_no_handshake_disturb_nobody(
    tls: NodeTls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(tls_door, "HANDSHAKE_SECONDS", 0.2)
    async with listening(tls) as api:
        reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
        writer.write(sent)
        assert await api.get(client(tmp_path)) == (200, [])
        await asyncio.wait_for(reader.read(), 5)
        writer.close()


async def test_a_look_at_the_port_is_no_refusal(tls: NodeTls, tmp_path: Path) -> None:
    async with listening(tls) as api:
        with socket.create_connection(("127.0.0.1", api.port)):
            pass
        assert await api.get(client(tmp_path)) == (200, [])
        assert api.refused == []


async def test_the_oldest_handshake_gives_way(tls: NodeTls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_door, "HANDSHAKE_SECONDS", 60.0)
    async with listening(tls, Limits(max_handshakes=3)) as api:
        idle = [await asyncio.open_connection("127.0.0.1", api.port) for _ in range(3)]
        for _, writer in idle:
            writer.write(b"\x16")
        assert await api.get(client(tmp_path)) == (200, [])
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(idle[0][0].read(), 5)
        for _, writer in idle:
            writer.close()


async def test_handshakes_of_an_attacker_are_cancelled_before_those_of_anybody_else(
    tls: NodeTls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest of any address was cancelled, so one address could keep everybody out (S10)."""
    monkeypatch.setattr(tls_door, "HANDSHAKE_SECONDS", 60.0)
    async with listening(tls, Limits(max_handshakes=20)) as api:
        slow_reader, slow = await asyncio.open_connection("127.0.0.1", api.port, local_addr=("127.0.0.2", 0))
        slow.write(b"\x16\x03\x01")
        idle = [await asyncio.open_connection("127.0.0.1", api.port) for _ in range(200)]
        for _, writer in idle:
            writer.write(b"\x16")
        ended = [asyncio.create_task(reader.read()) for reader, _ in idle]
        async with asyncio.timeout(10):
            done, _ = await asyncio.wait(ended[:181])
        assert all(isinstance(one.exception(), ConnectionResetError) or one.result() == b"" for one in done)
        assert await api.get(client(tmp_path)) == (200, [])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(slow_reader.read(), 0.1)
        for one in ended:
            one.cancel()
        await asyncio.gather(*ended, return_exceptions=True)
        for _, writer in (*idle, (slow_reader, slow)):
            writer.close()
