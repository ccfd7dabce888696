"""The data listener of a secured node over real TLS: strangers, users and nodes at every path. S11, S12."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from metadata.quorum.protocol import QUORUM_PATH
from raftlog.broker.replication_links import REPLICATION_PATH
from raftlog.broker.requests.data_listener import data_acceptors
from raftlog.broker.requests.forwarded import head_of
from raftlog.broker.requests.forwarding import FORWARD_PATH
from raftlog.broker.security.unauthenticated import TEXT
from raftlog.broker.tls.node_tls import NodeTls
from raftlog.errors import InvalidRequest
from raftlog.http2 import Http2Connection, Http2Limits, Http2Listener, Http2Stream, connect
from raftlog.http2.limits import DEFAULT_WINDOW
from raftlog.http2.tls import DialTls, prepare
from raftlog.model import BrokerId
from raftlog.security.acls import Operation, ResourceType
from raftlog.system.clock import SystemClock
from raftlog.wire import (
    FETCH_PATH,
    GROUPS_PATH,
    PRODUCE_PATH,
    TRANSACTIONS_PATH,
    ErrorResponse,
    FetchPartition,
    FetchRequest,
    OffsetQuery,
    OffsetsRequest,
    Request,
    Response,
    decode_response,
    encode,
)
from tests.support.clusters.tls import Authority, write
from tests.support.http.http2_server import Recorder, until
from tests.support.metadata.cluster import TOPIC
from tests.support.security.data_world import DataWorld
from tests.support.security.rules import ALICE, allow

pytestmark = pytest.mark.integration

CLUSTER = "c1"
CLIENT_PATHS = (PRODUCE_PATH, FETCH_PATH, GROUPS_PATH, TRANSACTIONS_PATH)
NODE_PATHS = (FORWARD_PATH, REPLICATION_PATH, QUORUM_PATH)
READ = allow(Operation.READ, ResourceType.TOPIC, "orders")
OFFSETS = OffsetsRequest(6, [OffsetQuery(TOPIC, 0, -1)])
POLL = FetchRequest(7, 30_000, 1, 1 << 20, [FetchPartition(TOPIC, 0, 0, 100)])


class SecuredListener:
    """A data listener with a node's TLS, whose users and rules a test changes. Links of nodes are counted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority()
        config = write(folder / "node", self.authority, self.authority.for_node(CLUSTER, 0))
        self.tls = NodeTls(config, CLUSTER, BrokerId(0), SystemClock())
        self.world = DataWorld(READ)
        self.links: list[int] = []
        self.connections: list[Http2Connection] = []
        acceptors = dict(self.world.acceptors)
        for path in (REPLICATION_PATH, QUORUM_PATH):
            acceptors[path] = self._link
        self.listener = Http2Listener(
            self.tls.guarded(acceptors),
            limits=Http2Limits(unaccepted_window_bytes=DEFAULT_WINDOW),
            node_paths=NODE_PATHS,
            ssl=self.tls.server_context,
        )
        self.port = 0

    def _link(self, stream: Http2Stream) -> Recorder:
        self.links.append(stream.peer_node)
        return Recorder()

    async def dial(self, *names: str) -> Http2Connection:
        """Connect with a certificate of the cluster's authority that has these names; without names: with none."""
        context = ssl.create_default_context(cadata=self.authority.pair[0].decode())
        context.check_hostname = False
        if names:
            certificate, key = self.authority.sign(*names)
            (self.folder / "c.pem").write_bytes(certificate)
            (self.folder / "k.pem").write_bytes(key)
            context.load_cert_chain(self.folder / "c.pem", self.folder / "k.pem")
        connection = await connect("127.0.0.1", self.port, ssl=DialTls(lambda: prepare(context)))
        self.connections.append(connection)
        return connection

    def token(self, name: str = "alice") -> str:
        return f"Bearer {self.world.credentials.put_token(name).text.reveal()}"


USER = "URI:raftlog:/user/alice"
NODE = f"URI:raftlog:/cluster/{CLUSTER}/node/2"


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[SecuredListener]:
    made = SecuredListener(tmp_path)
    made.world.credentials.put_user("alice")
    made.port = await made.listener.start("127.0.0.1", 0)
    yield made
    for connection in made.connections:
        connection.close()
    await made.listener.close(0.0)


async def refusal(connection: Http2Connection, path: str, authorization: str = "") -> tuple[str, str]:
    """Ask something at a path that must refuse the stream; return the code and the text."""
    recorder = Recorder()
    headers = {"authorization": authorization} if authorization else {}
    stream = connection.open_stream(path, headers, recorder)
    stream.send([b"anything"])
    await recorder.reason()
    assert recorder.messages == [] and isinstance(stream.refusal, InvalidRequest), stream.refusal
    return stream.refusal.code, stream.refusal.detail


def open_as(connection: Http2Connection, path: str, authorization: str = "") -> tuple[Http2Stream, Recorder]:
    recorder = Recorder()
    headers = {"authorization": authorization} if authorization else {}
    return connection.open_stream(path, headers, recorder), recorder


async def answer(stream: Http2Stream, recorder: Recorder, request: Request, caller: bytes = b"") -> Response:
    count = len(recorder.messages)
    stream.send([caller, *encode(request)] if caller else encode(request))
    return decode_response((await recorder.wait(count + 1))[-1])[0]


@pytest.mark.parametrize("path", CLIENT_PATHS)
async def test_clients_paths_need_a_credential_s12(secured: SecuredListener, path: str) -> None:
    stranger, node = await secured.dial(), await secured.dial(NODE)
    wrong = [
        await refusal(stranger, path),
        await refusal(stranger, path, "Bearer rlt_wrong"),
        await refusal(stranger, path, "Digest x"),
        await refusal(node, path),
        await refusal(await secured.dial("URI:raftlog:/user/bob"), path),
    ]
    assert set(wrong) == {("unauthenticated", TEXT[:300])}
    for connection, credential in (
        (stranger, secured.token()),
        (await secured.dial(USER), ""),
        (node, secured.token()),
    ):
        stream, recorder = open_as(connection, path, credential)
        await until(lambda stream=stream: stream.status is not None)  # type: ignore[misc]
        assert stream.status == 200 and not recorder.closed.done()
    assert secured.links == []


@pytest.mark.parametrize("path", NODE_PATHS)
async def test_no_credential_of_a_client_opens_a_nodes_path_s12(secured: SecuredListener, path: str) -> None:
    secured.world.credentials.put_user("root", superuser=True)
    strangers = [
        await refusal(await secured.dial(), path),
        await refusal(await secured.dial(), path, secured.token("root")),
        await refusal(await secured.dial(USER), path, secured.token()),
        await refusal(await secured.dial("URI:raftlog:/cluster/other/node/2"), path),
    ]
    assert {code for code, _ in strangers} == {"cluster_authorization_failed"}
    assert secured.links == []
    stream, _ = open_as(await secured.dial(NODE), path)
    await until(lambda: stream.status == 200)
    assert secured.links == ([] if path == FORWARD_PATH else [2])


async def test_a_node_forwards_for_callers_and_each_is_decided_again_s12(secured: SecuredListener) -> None:
    stream, recorder = open_as(await secured.dial(NODE), FORWARD_PATH)
    head = bytes(head_of(ALICE))  # type: ignore[arg-type]
    found: Any = await answer(stream, recorder, OFFSETS, head)
    assert found.partitions[0].offset == 7
    secured.world.remove(READ)
    refused: Any = await answer(stream, recorder, OFFSETS, head)
    assert refused.partitions[0].error == "authorization_failed"
    nameless: Any = await answer(stream, recorder, OFFSETS)
    assert (nameless.correlation_id, nameless.error) == (6, "authorization_failed")


async def test_a_revoked_token_ends_its_stream_on_the_wire_and_no_record_follows_s12(secured: SecuredListener) -> None:
    token = secured.world.credentials.put_token("alice")
    connection = await secured.dial()
    stream, recorder = open_as(connection, FETCH_PATH, f"Bearer {token.text.reveal()}")
    assert not isinstance(await answer(stream, recorder, OFFSETS), ErrorResponse)
    stream.send(encode(POLL))
    await until(lambda: len(secured.world.local.polls) == 1)
    secured.world.credentials.remove_token(token)
    secured.world.scheduler.run()
    secured.world.local.answer_polls()
    messages = await recorder.wait(2)
    assert decode_response(messages[1])[0] == ErrorResponse(-1, "unauthenticated", TEXT)
    await until(lambda: recorder.ended)
    assert await recorder.reason() == "ended" and len(recorder.messages) == 2
    assert (await refusal(connection, FETCH_PATH, f"Bearer {token.text.reveal()}"))[0] == "unauthenticated"
    again, other = open_as(connection, FETCH_PATH, secured.token())
    assert not isinstance(await answer(again, other, OFFSETS), ErrorResponse), "the connection serves other credentials"


async def test_a_reader_that_loses_its_topic_is_ended_on_the_wire_s12(secured: SecuredListener) -> None:
    stream, recorder = open_as(await secured.dial(), FETCH_PATH, secured.token())
    stream.send(encode(POLL))
    await until(lambda: len(secured.world.local.polls) == 1)
    secured.world.remove(READ)
    (message,) = await recorder.wait(1)
    error = decode_response(message)[0]
    assert isinstance(error, ErrorResponse) and (error.correlation_id, error.error) == (-1, "authorization_failed")
    await recorder.reason()


def test_every_path_of_a_node_is_looked_at_here() -> None:
    paths = set(data_acceptors(None, None, None, lambda: True))  # type: ignore[arg-type]
    assert paths | {REPLICATION_PATH, QUORUM_PATH} == {*CLIENT_PATHS, *NODE_PATHS}
