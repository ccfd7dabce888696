"""A cluster of three processes under TLS.

It works, certificates are replaced while it runs, and outsiders are refused with the reason and change nothing (S11,
S12).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from metadata.quorum.protocol import PROTOCOL_VERSION, QUORUM_PATH
from metadata.quorum.protocol import Hello as QuorumHello
from metadata.quorum.protocol import encode as encode_quorum
from partitions.replication.protocol import Hello as ReplicationHello
from partitions.replication.protocol import encode as encode_replication
from raftlog import Admin, Consumer, Producer, commit_together
from raftlog.broker.identity import read_identity
from raftlog.broker.replication_links import REPLICATION_PATH
from raftlog.broker.requests.forwarding import FORWARD_PATH
from raftlog.broker.tls.node_tls import QUORUM_NAME
from raftlog.cli.nodes.local_cluster import DATA_FOLDER, SETTINGS_FILE, LocalCluster, free_base_port
from raftlog.errors import InvalidRequest, RetriableError
from raftlog.http2 import Http2Connection, Http2Limits, connect
from raftlog.http2.tls import DialTls, prepare
from raftlog.model import BrokerId
from raftlog.sync import Admin as BlockingAdmin
from raftlog.system.disk import LocalDisk
from tests.support.cli_runner import run
from tests.support.clusters.cluster import PATIENCE_S, eventually, log_lines, stop_and_check, tell
from tests.support.clusters.tls import SETTING, Authority, write
from tests.support.http.http2_server import Recorder

pytestmark = pytest.mark.integration

TOPIC = "under-tls"


@dataclass
class TlsCluster:
    cluster: LocalCluster
    authority: Authority
    cluster_id: str

    def folder(self, node: int) -> Path:
        return Path(self.cluster.nodes[node].folder)

    def logged(self, node: int, event: str) -> list[dict[str, Any]]:
        return [line for line in log_lines(self.cluster.nodes[node]) if line["event"] == event]

    async def told(self, node: int, event: str, text: str) -> None:
        async def look() -> bool:
            return any(text in str(line) for line in self.logged(node, event))

        await eventually(look, f"node {node} logs {event} with {text!r}")

    async def dial(self, context: ssl.SSLContext | None, name: str | None = None) -> Http2Connection:
        where = self.cluster.nodes[0].data
        tls = None if context is None else DialTls(lambda: context, name)
        return await connect(where.host, where.port, ssl=tls, limits=Http2Limits(connect_timeout_s=PATIENCE_S))

    def context(self, signed: tuple[bytes, bytes] | None, folder: Path) -> ssl.SSLContext:
        """The context of a client that trusts the cluster's authority and presents this certificate."""
        made = ssl.create_default_context(cadata=self.authority.pair[0].decode())
        made.check_hostname = False
        if signed is not None:
            (folder / "c.pem").write_bytes(signed[0])
            (folder / "k.pem").write_bytes(signed[1])
            made.load_cert_chain(folder / "c.pem", folder / "k.pem")
        return prepare(made)


@pytest.fixture(scope="module")
def running() -> Iterator[TlsCluster]:
    with tempfile.TemporaryDirectory(prefix="raftlog-test-") as folder:
        cluster = LocalCluster(folder, 3, free_base_port(3), settings={"tls": SETTING})
        cluster.prepare()
        found = {}
        for node in cluster.nodes:
            data = f"{node.folder}/{DATA_FOLDER}"
            found[node.node_id] = read_identity(LocalDisk(data), data).cluster_id
        made = TlsCluster(cluster, Authority(), found[0])
        for node in cluster.nodes:
            write(node.folder, made.authority, made.authority.for_node(made.cluster_id, node.node_id))
        try:
            cluster.start()
            cluster.wait_ready(PATIENCE_S)
            with BlockingAdmin(cluster.bootstrap) as admin:
                admin.create_topic(TOPIC, partitions=1)
            yield made
        except BaseException:
            cluster.kill_all()
            tell(cluster)
            raise
        stop_and_check(cluster)


async def read_all(made: TlsCluster, node: int) -> list[bytes]:
    """Over the API of one node: forwarded, if it does not lead."""
    import aiohttp

    path, headers = f"/v1/topics/{TOPIC}/partitions/0/records?offset=0", {"accept": "application/json"}
    async with (
        aiohttp.ClientSession(f"http://{made.cluster.nodes[node].api}") as session,
        session.get(path, headers=headers) as answer,
    ):
        body = await answer.read()
        if answer.status != 200:
            raise RetriableError("not_leader", body.decode())
        return [record["value"].encode() for record in json.loads(body)["records"]]


async def write_one(made: TlsCluster, node: int, value: bytes) -> None:
    import aiohttp

    async with aiohttp.ClientSession(f"http://{made.cluster.nodes[node].api}") as session:
        path = f"/v1/topics/{TOPIC}/records?partition=0"
        async with session.post(path, data=value, headers={"content-type": "application/octet-stream"}) as answer:
            assert answer.status in (200, 201), await answer.text()


async def test_the_cluster_works(running: TlsCluster) -> None:
    """Quorum, replication and forwarded requests, all of them encrypted."""
    async with Admin(running.cluster.bootstrap) as admin:

        async def full() -> bool:
            (partition,) = (await admin.describe_topic(TOPIC)).partitions
            return partition.leader is not None and len(partition.isr) == 3

        await eventually(full, "all replicas in sync")
        for node in range(3):
            await write_one(running, node, b"from-%d" % node)
        for node in range(3):
            assert sorted(await read_all(running, node)) == [b"from-0", b"from-1", b"from-2"]

        async def well() -> bool:
            return not (await admin.health()).problems

        await eventually(well, "nothing is wrong")


async def test_native_clients(running: TlsCluster, tmp_path: Path) -> None:
    """They trust the authority, present no certificate, and check that the server's certificate names the host."""
    trusted = tmp_path / "authority.pem"
    trusted.write_bytes(running.authority.pair[0])
    context = ssl.create_default_context(cafile=str(trusted))
    async with (
        Producer(running.cluster.bootstrap, ssl=context) as producer,
        Consumer(running.cluster.bootstrap, TOPIC, ssl=context) as consumer,
    ):
        for number in range(10):
            await producer.send_and_wait(TOPIC, b"native-%d" % number, partition=0)
        found: list[bytes | None] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(found) < 10:
                found += [r.value for r in await consumer.poll() if r.value and r.value.startswith(b"native")]
        assert found == [b"native-%d" % number for number in range(10)]


async def test_transactions_of_native_clients(running: TlsCluster, tmp_path: Path) -> None:
    """S13. Their requests go to the data listeners, as records do."""
    trusted = tmp_path / "authority.pem"
    trusted.write_bytes(running.authority.pair[0])
    context = ssl.create_default_context(cafile=str(trusted))
    async with Admin(running.cluster.bootstrap) as admin:
        await admin.create_topic("in-transactions", partitions=1)
    async with Producer(running.cluster.bootstrap, ssl=context) as producer, asyncio.timeout(PATIENCE_S):
        async with producer.transaction(wait="visible") as transaction:
            await transaction.send_and_wait("in-transactions", b"committed-1")
        async with producer.transaction() as transaction:
            await transaction.send_and_wait("in-transactions", b"committed-2")
            output = await transaction.prepare()
        await commit_together([output], bootstrap=running.cluster.bootstrap, ssl=context, wait="visible")
        async with producer.transaction() as transaction:
            await transaction.send_and_wait("in-transactions", b"open")
            async with Admin(running.cluster.bootstrap) as admin:
                await admin.abort_transaction(*transaction.key)
            with pytest.raises(InvalidRequest, match="aborted"):
                await transaction.commit()
    async with Consumer(running.cluster.bootstrap, "in-transactions", ssl=context) as consumer:
        found: list[bytes | None] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(found) < 2:
                found += [r.value for r in await consumer.poll()]
    assert found == [b"committed-1", b"committed-2"]


def test_the_command_line(running: TlsCluster, tmp_path: Path) -> None:
    trusted = tmp_path / "authority.pem"
    trusted.write_bytes(running.authority.pair[0])
    where = ("--bootstrap", running.cluster.bootstrap)
    records = ("--tls-authority", str(trusted), "--partition", "0")
    sent = run(*where, "produce", TOPIC, *records, stdin=b"from-cli")
    assert sent.code == 0, sent.stderr
    read = run(*where, "consume", TOPIC, *records, "--from", "earliest", "--timeout", "0.5")
    assert b"from-cli" in read.stdout, read.stderr


@pytest.mark.parametrize("words", [("consume", TOPIC, "--from", "earliest"), ("produce", TOPIC)])
def test_commands_say_at_once_that_tls_differs(running: TlsCluster, words: tuple[str, ...], tmp_path: Path) -> None:
    """Neither `0 records read` nor a wait for the client's own deadline of two minutes."""
    began = time.monotonic()
    plain = run("--bootstrap", running.cluster.bootstrap, *words, stdin=b"never")
    assert plain.code == 1
    assert "this listener speaks TLS only" in plain.stderr and "(--tls-authority)" in plain.stderr
    (tmp_path / "other.pem").write_bytes(Authority().pair[0])
    other = run("--bootstrap", running.cluster.bootstrap, *words, "--tls-authority", str(tmp_path / "other.pem"))
    assert other.code == 1
    assert "no records can pass: node " in other.stderr and "certificate" in other.stderr
    assert time.monotonic() - began < PATIENCE_S


@pytest.mark.parametrize(
    ("trusted", "why"),
    [(None, "this listener speaks TLS only"), ("another's", "certificate verify failed")],
)
async def test_clients_with_the_wrong_settings_get_the_reason(
    running: TlsCluster, trusted: str | None, why: str
) -> None:
    context = None if trusted is None else ssl.create_default_context(cadata=Authority().pair[0].decode())
    before = await read_all(running, 0)
    with pytest.raises(RetriableError, match=why):
        async with Producer(running.cluster.bootstrap, ssl=context, delivery_timeout_ms=2000) as producer:
            await producer.send_and_wait(TOPIC, b"never", partition=0)
    assert await read_all(running, 0) == before


class Refused(Exception):
    """Refused, with the reason that the peer got."""


async def open_stream(connection: Http2Connection, path: str, hello: bytes | None) -> Recorder:
    """A stream that sends a hello; raises `Refused` if it is closed before any answer."""
    handler = Recorder()
    stream = connection.open_stream(path, {}, handler)
    if hello is not None:
        stream.send([hello])
    answered = asyncio.ensure_future(handler.wait(1))
    closed = asyncio.ensure_future(handler.reason())
    await asyncio.wait([answered, closed], return_when=asyncio.FIRST_COMPLETED)
    if answered.done() and answered.exception() is None:
        closed.cancel()
        return handler
    with contextlib.suppress(AssertionError):
        await answered
    raise Refused(await closed)


def hellos(made: TlsCluster, node: int) -> dict[str, bytes | None]:
    directory = bytes(16)
    return {
        QUORUM_PATH: encode_quorum(QuorumHello(PROTOCOL_VERSION, made.cluster_id, node, directory)),
        REPLICATION_PATH: b"".join(map(bytes, encode_replication(ReplicationHello(made.cluster_id, node, 1 << 40)))),
        FORWARD_PATH: None,
    }


@pytest.mark.parametrize("name", [None, QUORUM_NAME])
@pytest.mark.parametrize(
    ("who", "why"),
    [
        ("nobody", "no certificate was shown"),
        ("user", "names no node"),
        ("other cluster", "names no node of cluster"),
        ("both", "names several nodes"),
    ],
)
async def test_brokers_paths_are_for_nodes_only(
    running: TlsCluster, tmp_path: Path, who: str, why: str, name: str | None
) -> None:
    authority, before = running.authority, await read_all(running, 0)
    signed = {
        "nobody": None,
        "user": authority.sign("DNS:alice"),
        "other cluster": authority.for_node("another", 1),
        "both": authority.sign(*(f"URI:raftlog:/cluster/{running.cluster_id}/node/{node}" for node in (1, 2))),
    }[who]
    connection = await running.dial(running.context(signed, tmp_path), name)
    for path, hello in hellos(running, 1).items():
        elsewhere = name is not None and path != QUORUM_PATH
        with pytest.raises(Refused, match="421" if elsewhere else f"403.*cluster_authorization_failed.*{why}"):
            await open_stream(connection, path, hello)
    connection.close()
    await connection.wait_closed()
    await running.told(0, "connection_refused", why)
    assert await read_all(running, 0) == before


@pytest.mark.parametrize("name", [None, QUORUM_NAME])
async def test_a_node_speaks_only_for_itself(running: TlsCluster, tmp_path: Path, name: str | None) -> None:
    """Node 1's certificate, and frames that claim to be node 2's."""
    signed = running.authority.for_node(running.cluster_id, 1)
    for path in (QUORUM_PATH, REPLICATION_PATH):
        if name is not None and path != QUORUM_PATH:
            continue
        connection = await running.dial(running.context(signed, tmp_path), name)
        with pytest.raises(Refused):
            await open_stream(connection, path, hellos(running, 2)[path])
        await connection.wait_closed()
    await running.told(0, "quorum_link_dropped", "node 1, by its certificate, claims to be node 2")
    if name is None:
        await running.told(0, "replication link dropped", "broker 1, by its certificate, says that it is broker 2")


@pytest.mark.parametrize("who", ["stranger", "expired"])
async def test_invalid_certificates(running: TlsCluster, tmp_path: Path, who: str) -> None:
    signed, why = {
        "stranger": (Authority().for_node(running.cluster_id, 1), "unable to get local issuer certificate"),
        "expired": (running.authority.for_node(running.cluster_id, 1, days=-1), "certificate has expired"),
    }[who]
    with pytest.raises(RetriableError, match="does not take this certificate; its log says which"):
        await running.dial(running.context(signed, tmp_path))
    await running.told(0, "connection_refused", why)


async def test_plain_connections_get_the_reason(running: TlsCluster) -> None:
    with pytest.raises(RetriableError, match="this listener speaks TLS only"):
        await running.dial(None)
    await running.told(0, "connection_refused", "speaks TLS only")


async def test_a_node_with_another_nodes_certificate_is_refused(running: TlsCluster, tmp_path: Path) -> None:
    """A server at node 2's address presents node 1's certificate: the check of the dialing side."""
    from raftlog.broker.tls.names import NodeNames
    from raftlog.config import DEFAULT_NODE_NAME

    names = NodeNames(DEFAULT_NODE_NAME, running.cluster_id)
    context = running.context(running.authority.for_node(running.cluster_id, 2), tmp_path)
    where = running.cluster.nodes[0].data
    dial = DialTls(lambda: context, check=lambda shown: names.expect(shown, BrokerId(1)))
    with pytest.raises(RetriableError, match="node 1 was expected, but node 0 is the owner"):
        await connect(where.host, where.port, ssl=dial)


async def test_old_tls_versions_are_refused(running: TlsCluster, tmp_path: Path) -> None:
    context = running.context(None, tmp_path)
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.set_ciphers("ALL:@SECLEVEL=0")
    where = running.cluster.nodes[0].data

    def shake(highest: ssl.TLSVersion) -> str | None:
        context.maximum_version = highest
        with socket.create_connection((where.host, where.port), PATIENCE_S) as sock, context.wrap_socket(sock) as tls:
            return tls.version()

    assert await asyncio.to_thread(shake, ssl.TLSVersion.MAXIMUM_SUPPORTED) == "TLSv1.3"
    assert await asyncio.to_thread(shake, ssl.TLSVersion.TLSv1_2) == "TLSv1.2"
    with pytest.warns(DeprecationWarning), pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.to_thread(shake, ssl.TLSVersion.TLSv1_1)


async def test_certificates_are_replaced_while_it_runs(running: TlsCluster) -> None:
    """To a new authority: both are trusted, then nodes get new certificates, then the old one is removed. New
    connections use the new ones; records flow all the while."""
    old, new = running.authority, Authority()
    both = Authority()
    both.pair = (old.pair[0] + new.pair[0], b"")

    async def step(trusted: Authority, signer: Authority, what: str) -> None:
        for node in range(3):
            seen = len(running.logged(node, "tls_files_read"))
            write(running.folder(node), trusted, signer.for_node(running.cluster_id, node))

            async def read_again(node: int = node, seen: int = seen) -> bool:
                return len(running.logged(node, "tls_files_read")) > seen

            await eventually(read_again, f"node {node} reads its files again")
        await write_one(running, 0, what.encode())

    await step(both, old, "both-trusted")
    await step(both, new, "new-certificates")
    await step(new, new, "old-one-gone")
    running.authority = new
    running.cluster.kill_node(2)
    running.cluster.start_node(2)
    await asyncio.to_thread(running.cluster.wait_ready, PATIENCE_S)
    async with Admin(running.cluster.bootstrap) as admin:

        async def full() -> bool:
            (partition,) = (await admin.describe_topic(TOPIC)).partitions
            return partition.leader is not None and len(partition.isr) == 3

        await eventually(full, "a restarted node joins with its new certificate")
    assert {b"both-trusted", b"new-certificates", b"old-one-gone"} <= set(await read_all(running, 2))


LISTEN = "api.listen = { port = 0 }\ndata.listen = { port = 0 }\n"


def test_a_node_does_not_start_with_files_that_cannot_be_used(running: TlsCluster, tmp_path: Path) -> None:
    """Nor does it count the start, or remove the marker of its clean stop."""
    from raftlog.broker.identity import CLEAN_SHUTDOWN_FILE, STARTS_FILE, init_data_folder
    from raftlog.broker.node.main import run_node
    from raftlog.model import Endpoint

    data = tmp_path / "data"
    init_data_folder(str(data), cluster_id="c", node_id=0, voters={0: Endpoint("127.0.0.1", 0)})
    write(tmp_path, running.authority, running.authority.for_node("c", 0, days=-1))
    (tmp_path / SETTINGS_FILE).write_text(f'data_folder = "data"\ntls = {SETTING}\n{LISTEN}')
    with pytest.raises(InvalidRequest, match=r"certificate\.pem.*: certificate has expired"):
        run_node(str(tmp_path / SETTINGS_FILE))
    assert (data / CLEAN_SHUTDOWN_FILE).exists() and not (data / STARTS_FILE).exists()
