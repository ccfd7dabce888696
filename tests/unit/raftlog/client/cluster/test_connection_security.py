"""The credential of a client (S12): where it travels, where it does not, and what a refusal does."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import raftlog.sync
from raftlog.client import Admin, Consumer, Credentials, Producer, commit_together
from raftlog.client.cluster.api import HttpApi, parse_bootstrap, speaks_https
from raftlog.client.cluster.connection_security import ConnectionSecurity
from raftlog.client.settings import AdminSettings
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError
from raftlog.model import Endpoint
from raftlog.wire import FETCH_PATH, PRODUCE_PATH, TRANSACTIONS_PATH
from tests.support.cli_runner import impatient
from tests.support.client.fake_cluster import FakeCluster, ServerTls
from tests.support.clusters.certificates import self_signed
from tests.support.clusters.held_port import HOST, HeldPort

OLD, NEW = "rlt_old_secret-1", "rlt_new_secret-2"


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a certificate for this machine, and its key."""
    file = tmp_path_factory.mktemp("authority") / "authority.pem"
    file.write_bytes(b"".join(self_signed(HOST)))
    return file


def server_tls(file: Path) -> ServerTls:
    contexts = []
    for protocols in (["http/1.1"], ["h2"]):
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(file)
        context.set_alpn_protocols(protocols)
        contexts.append(context)
    return ServerTls(*contexts)


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as made:
        made.create_topic("t")
        yield made


async def use(bootstrap: str, **settings: Any) -> None:
    """Send and read one record, commit a transaction, and describe a topic."""
    async with asyncio.timeout(20):
        async with Producer(bootstrap, **settings) as producer:
            await producer.send_and_wait("t", b"v")
            async with producer.transaction() as transaction:
                transaction.send("t", b"w")
        async with Consumer(bootstrap, "t", **settings) as consumer:
            assert (await anext(aiter(consumer))).value == b"v"
        async with Admin(bootstrap, **settings) as admin:
            await admin.describe_topic("t")


async def test_every_request_and_every_stream_carries_the_credential(cluster: FakeCluster) -> None:
    cluster.accepted = {f"Bearer {NEW}"}
    await use(cluster.bootstrap, credentials=Credentials(token=NEW))
    assert {header for _, header in cluster.carried} == cluster.accepted
    carried = {what for what, _ in cluster.carried}
    assert {PRODUCE_PATH, FETCH_PATH, TRANSACTIONS_PATH, "GET /v1/topics/t", "POST /v1/producers"} <= carried


async def test_the_blocking_twins_and_the_fallback_carry_it_too(cluster: FakeCluster) -> None:
    credentials = Credentials(user="alice", password="secret-1 secret-1")
    header = credentials.header()
    assert header is not None
    cluster.accepted = {header.reveal()}

    def blocking() -> None:
        with raftlog.sync.Producer(cluster.bootstrap, credentials=credentials) as producer:
            producer.send("t", b"v").result(10)
            with producer.transaction() as transaction:
                transaction.send("t", b"w")
                output = transaction.prepare()
                raftlog.sync.commit_together([output], bootstrap=cluster.bootstrap, credentials=credentials)
        with raftlog.sync.Consumer(cluster.bootstrap, "t", credentials=credentials) as consumer:
            assert next(iter(consumer)).value == b"v"
        with raftlog.sync.Admin(cluster.bootstrap, credentials=credentials) as admin:
            admin.describe_topic("t")

    await asyncio.to_thread(blocking)
    async with Producer(cluster.bootstrap, credentials=credentials) as producer, producer.transaction() as transaction:
        transaction.send("t", b"x")
        output = await transaction.prepare()
        await commit_together([output], bootstrap=cluster.bootstrap, credentials=credentials)
    assert {header for _, header in cluster.carried} == cluster.accepted


async def test_the_environments_token_is_used_unless_another_credential_is_given(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAFTLOG_TOKEN", NEW)
    for credentials in (None, Credentials(token=OLD), Credentials()):
        async with Admin(cluster.bootstrap, credentials=credentials) as admin:
            await admin.cluster()
    assert [header for _, header in cluster.carried] == [f"Bearer {NEW}", f"Bearer {OLD}", ""]


@pytest.mark.parametrize("accepted", [True, False])
async def test_a_token_file_is_read_again_once_when_its_token_is_refused(
    cluster: FakeCluster, tmp_path: Path, accepted: bool
) -> None:
    """A rotation needs no restart; a wrong token fails at once, on the API and on streams."""
    file = tmp_path / "token"
    file.write_text(OLD)
    cluster.accepted = {f"Bearer {OLD}"}
    credentials = Credentials(token_file=str(file))
    async with asyncio.timeout(20), Admin(cluster.bootstrap, credentials=credentials) as admin:
        producer = Producer(cluster.bootstrap, credentials=credentials)
        consumer = Consumer(cluster.bootstrap, "t", credentials=credentials)
        await producer.send_and_wait("t", b"1")
        assert (await anext(aiter(consumer))).value == b"1"
        await admin.cluster()
        cluster.accepted = {f"Bearer {NEW}"} if accepted else set()
        file.write_text(NEW)
        cluster.carried.clear()
        for stream in cluster.nodes[1].streams():
            stream.reset()
        if accepted:
            await producer.send_and_wait("t", b"2")
            assert (await anext(aiter(consumer))).value == b"2"
            await admin.cluster()
        else:
            refusals: list[Awaitable[object]] = [
                producer.send_and_wait("t", b"2"),
                anext(aiter(consumer)),
                admin.cluster(),
            ]
            for refused in refusals:
                with pytest.raises(RaftlogError) as error:
                    await refused
                # A batch that was sent before the reset of its stream arrived may have been appended.
                assert error.value.code in {"unauthenticated", "outcome_unknown"}
                assert "credential" in error.value.detail and str(file) in error.value.detail
        await producer.close(flush=False)
        await consumer.close()
    asked = [header for what, header in cluster.carried if what == "GET /v1/cluster"]
    assert asked.count(f"Bearer {OLD}") <= 3, "once for each client object"


async def test_a_missing_credential_is_a_final_error(cluster: FakeCluster) -> None:
    cluster.accepted = {f"Bearer {NEW}"}
    async with asyncio.timeout(5), Admin(cluster.bootstrap) as admin:
        with pytest.raises(InvalidRequest, match="this client sent no credential") as error:
            await admin.cluster()
        assert error.value.code == "unauthenticated" and not error.value.retriable
    for token in (None, OLD):
        cluster.carried.clear()
        credentials = None if token is None else Credentials(token=token)
        producer = Producer(cluster.bootstrap, credentials=credentials)
        consumer = Consumer(cluster.bootstrap, "t", credentials=credentials)
        async with asyncio.timeout(5):
            with pytest.raises(InvalidRequest, match="unauthenticated"):
                await producer.send_and_wait("t", b"v")
            with pytest.raises(InvalidRequest, match="unauthenticated"):
                await anext(aiter(consumer))
        await asyncio.sleep(0.1)
        asked = len(cluster.carried)
        await asyncio.sleep(0.3)
        assert len(cluster.carried) == asked, "no request is repeated in the background"
        await producer.close(flush=False)
        await consumer.close()


async def test_a_request_that_no_rule_allows_is_a_final_error(cluster: FakeCluster) -> None:
    cluster.accepted, cluster.allowed = {f"Bearer {NEW}"}, False
    credentials = Credentials(token=NEW)
    async with asyncio.timeout(5):
        producer = Producer(cluster.bootstrap, credentials=credentials)
        with pytest.raises(InvalidRequest, match="no rule allows") as error:
            await producer.send_and_wait("t", b"v")
        assert error.value.code == "authorization_failed"
        consumer = Consumer(cluster.bootstrap, "t", credentials=credentials)
        with pytest.raises(InvalidRequest, match="no rule allows"):
            await anext(aiter(consumer))
        await producer.close(flush=False)
        await consumer.close()


async def test_a_stream_that_ends_for_its_credential_fails_later_requests_at_once(cluster: FakeCluster) -> None:
    """A revoked token: the broker ends the stream, and the next one is refused."""
    cluster.accepted = {f"Bearer {NEW}"}
    async with asyncio.timeout(10):
        producer = Producer(cluster.bootstrap, credentials=Credentials(token=NEW))
        await producer.send_and_wait("t", b"v")
        cluster.accepted = set()
        for stream in cluster.nodes[1].streams():
            stream.reset()
        with pytest.raises(RaftlogError) as error:
            await producer.send_and_wait("t", b"w")
        assert error.value.code == "unauthenticated"
        await producer.close(flush=False)


# --- Where it is not sent ---------------------------------------------------------------------------------------------


def test_bootstrap_addresses_with_and_without_tls() -> None:
    assert speaks_https("https://a:1,b:2") and speaks_https(["b:2", " https://a:1/"])
    assert speaks_https("http://a:1,b:2") is False and speaks_https("a:1") is None
    assert parse_bootstrap("https://a:1, https://[::1]:2/") == [Endpoint("a", 1), Endpoint("::1", 2)]
    with pytest.raises(InvalidRequest, match="differ in TLS"):
        speaks_https("https://a:1,http://b:2")


@pytest.mark.parametrize("make", [Admin, Producer, lambda *a, **k: Consumer(a[0], "t", **k)])
def test_a_credential_is_not_sent_in_plain_text(make: Any) -> None:
    for credentials in (Credentials(token=NEW), Credentials(token_file="f"), Credentials(user="a", password=OLD)):
        with pytest.raises(InvalidRequest, match="without TLS it could be read") as error:
            make("node0.example.org:9640", credentials=credentials)
        assert error.value.code == "invalid_config" and "secret" not in error.value.detail
        make("node0.example.org:9640", credentials=credentials, insecure_credentials=True)
        make("https://node0.example.org:9640", credentials=credentials)
        make("localhost:1,127.0.0.2:1,[::1]:1,node.localhost:1", credentials=credentials)
    make("node0.example.org:9640")


def test_addresses_without_a_scheme_mean_https_if_a_credential_needs_it(authority: Path) -> None:
    def https(bootstrap: str, **settings: Any) -> bool:
        return HttpApi(bootstrap, ConnectionSecurity(AdminSettings(**settings))).https

    token, file = Credentials(token=NEW), str(authority)
    assert https("node0:1", credentials=token, tls_authority=file)
    assert https("node0:1", tls_authority=file, tls_certificate=file)
    assert https("node0:1", credentials=token, ssl=ssl.create_default_context())
    assert not https("node0:1", tls_authority=file), "a cluster that has TLS on its data listeners alone"
    assert not https("localhost:1", credentials=token) and not https("node0:1")
    assert not https("http://localhost:1", credentials=token, tls_authority=file)


def test_a_context_that_verifies_nothing_is_no_protection() -> None:
    blind = ssl.create_default_context()
    blind.check_hostname = False
    with pytest.raises(InvalidRequest, match="verifies neither"):
        Admin("https://node0.example.org:9640", ssl=blind, credentials=Credentials(token=NEW))


async def test_a_learned_address_beyond_this_machine_gets_no_credential(cluster: FakeCluster) -> None:
    """The cluster's metadata names it; a tunnel or a forged answer could."""
    security = ConnectionSecurity(AdminSettings(credentials=Credentials(token=NEW)))
    async with HttpApi(cluster.bootstrap, security) as api:
        api.learn([Endpoint("node0.example.org", 9640)])
        api.prefer_another()
        with pytest.raises(InvalidRequest, match=r"was not sent to node0\.example\.org"):
            await api.get("/v1/cluster", dict)
    cluster.nodes[1].data_address = "node0.example.org:9641"
    producer = Producer(cluster.bootstrap, credentials=Credentials(token=NEW))
    async with asyncio.timeout(10):
        with pytest.raises(InvalidRequest, match=r"was not sent to node0\.example\.org:9641"):
            await producer.send_and_wait("t", b"v")
    await producer.close(flush=False)


async def test_redirections_are_not_followed() -> None:
    seen: list[str] = []

    async def redirect(request: web.Request) -> web.Response:
        seen.append(request.path)
        raise web.HTTPTemporaryRedirect("/elsewhere")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", redirect)
    runner, port = web.AppRunner(app), HeldPort()
    await runner.setup()
    await web.TCPSite(runner, HOST, port.number).start()
    async with Admin(str(port), credentials=Credentials(token=NEW)) as admin:
        with pytest.raises(RaftlogError, match="answered 307"):
            await admin.cluster()
    assert seen == ["/v1/cluster"]
    await runner.cleanup()
    port.release()


# --- TLS --------------------------------------------------------------------------------------------------------------


async def test_a_cluster_under_tls_is_verified(
    authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FakeCluster(nodes=2, tls=server_tls(authority)) as cluster:
        cluster.create_topic("t")
        cluster.accepted = {f"Bearer {NEW}"}
        settings: dict[str, Any] = {"credentials": Credentials(token=NEW)}
        await use(cluster.bootstrap, tls_authority=str(authority), **settings)
        await use(cluster.bootstrap, ssl=ssl.create_default_context(cafile=authority), **settings)
        cluster.carried.clear()
        impatient(monkeypatch)
        async with Admin(cluster.bootstrap, **settings) as admin:
            with pytest.raises(RetriableError, match="certificate that is not accepted here"):
                await admin.describe_topic("t")
        other = tmp_path / "other.pem"
        other.write_bytes(self_signed(HOST)[0])
        elsewhere = cluster.bootstrap.replace(HOST, "localhost")
        for bootstrap, file in ((cluster.bootstrap, other), (elsewhere, authority)):
            async with Admin(bootstrap, tls_authority=str(file), **settings) as admin:
                with pytest.raises(RetriableError, match="certificate"):
                    await admin.cluster()
        assert cluster.carried == [], "no node got the credential"


def test_files_that_are_no_certificates_are_reported(tmp_path: Path, authority: Path) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no certificate")
    for file in (wrong, tmp_path / "none.pem"):
        with pytest.raises(InvalidRequest, match="contains no certificate of an authority"):
            Admin("https://h:1", tls_authority=str(file))
    with pytest.raises(InvalidRequest, match="are not a certificate and its key"):
        Admin("https://h:1", tls_certificate=str(wrong), tls_key=str(authority))
    Admin("https://h:1", tls_authority=str(authority), tls_certificate=str(authority))


# --- Quotas -----------------------------------------------------------------------------------------------------------


async def test_a_throttled_request_waits_as_long_as_the_node_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking another node instead would evade the quota."""
    pauses: list[float] = []
    asked: list[str] = []

    async def throttled(request: web.Request) -> web.Response:
        asked.append(request.path)
        if len(asked) > 2:
            return web.json_response(
                {"cluster_id": "c", "version": "0", "feature_level": 1, "controller": 1, "nodes": []}
            )
        problem = {"code": "throttled", "detail": "the quota is used up"}
        return web.json_response(problem, status=429, headers={"Retry-After": "3"})

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", throttled)
    runner, port = web.AppRunner(app), HeldPort()
    await runner.setup()
    await web.TCPSite(runner, HOST, port.number).start()
    monkeypatch.setattr("raftlog.client.cluster.any_node.asyncio.sleep", sleep)
    async with HttpApi(str(port)) as api:
        await api.get("/v1/cluster", dict)
        assert pauses == [3.0, 3.0]
        asked.clear()
        with pytest.raises(RetriableError, match="quota is used up"):
            await api.get("/v1/cluster", dict, timeout=2.0)
        assert len(asked) == 1, "there was no time to wait"
    monkeypatch.undo()
    await runner.cleanup()
    port.release()


# --- Secrecy ----------------------------------------------------------------------------------------------------------


async def test_no_log_and_no_error_shows_a_credential(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    cluster.accepted = set()
    errors = []
    for credentials in (Credentials(token=NEW), Credentials(user="alice", password="secret-3")):
        producer = Producer(cluster.bootstrap, credentials=credentials)
        try:
            await producer.send_and_wait("t", b"v")
        except RaftlogError as error:
            errors.append(repr(error) + error.detail)
        await producer.close(flush=False)
        errors += [repr(vars(producer)), repr(producer)]
    shown = caplog.text + "".join(errors)
    assert len(errors) == 6
    for secret in ("secret-", "c2VjcmV0", "YWxpY2U6"):
        assert secret not in shown
