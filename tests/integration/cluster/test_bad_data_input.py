"""Invalid input at the data ports of real nodes: native clients', followers', voters' and forwarding brokers' (S11).

Frames of HTTP/2 itself are tested in `tests/integration/http2/`. These tests cover whole nodes: connected clients
continue, no leader is deposed, nothing is appended, and a pickle is only bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgpack
import pytest
import pytest_asyncio
from hpack import Encoder
from hyperframe.frame import GoAwayFrame

from metadata.quorum import protocol as qp
from partitions.replication import protocol as rp
from raftlog import Admin
from raftlog.cli.nodes.local_cluster import LocalCluster
from raftlog.http2.frames import PREFACE
from raftlog.model import NO_BROKER, Endpoint
from raftlog.wire import (
    ErrorResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    OffsetQuery,
    OffsetsRequest,
    ProduceResponse,
)
from tests.support.clusters.attack import GOOD, lying_batches, noise, pickled, state_of
from tests.support.clusters.cluster import (
    PATIENCE_S,
    all_in_sync,
    eventually,
    known_everywhere,
    log_lines,
    node_api,
    running_cluster,
)
from tests.support.clusters.traffic import Traffic, check_exactly
from tests.support.clusters.wire import message_of, produce_message, talking
from tests.support.http.http2_peer import data_frame, only, parse, raw_frame, settings_frame

pytestmark = pytest.mark.integration

TOPIC = "t"
PRODUCE, FETCH, FORWARD = "/v1/produce", "/v1/fetch", "/raftlog.forward"
REQUEST_PATHS = (PRODUCE, FETCH, FORWARD)
LINK_PATHS = (rp.REPLICATION_PATH, qp.QUORUM_PATH)
LIES = lying_batches()
HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with running_cluster() as running:
        asyncio.run(_fill(running))
        yield running


async def _fill(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap) as admin, node_api(cluster.nodes[0]) as api:
        await admin.create_topic(TOPIC, 1, replication_factor=3)
        await all_in_sync(admin, TOPIC)
        await known_everywhere(cluster, TOPIC)
        assert (await api.post(f"/v1/topics/{TOPIC}/records", b"one\ntwo\n", "text/plain")).status == 200


class Attacked:
    """The data ports of the partition's leader and of another node."""

    def __init__(self, cluster: LocalCluster, leader: int, topic_id: bytes, cluster_id: str, trap: Path) -> None:
        self.cluster = cluster
        self.leader = cluster.nodes[leader].data
        self.other = cluster.nodes[(leader + 1) % 3].data
        self.topic_id = topic_id
        self.cluster_id = cluster_id
        self.pickle = pickled(str(trap))

    def rubbish(self) -> list[bytes]:
        """Invalid messages of every kind that is sent here."""
        head = len(self.pickle).to_bytes(4, "big")
        return [
            b"\0",
            b"\xff" * 4,
            b"\0\0\0\0",
            noise(1, 50),
            noise(2, 100_000),
            HEAD,
            self.pickle,
            head + self.pickle,
            (2**32 - 1).to_bytes(4, "big") + b"\x91",
            _packed(["produce.1"]),
            _packed(["produce.9", 1, -1, 1000, []]),
            _packed(["hello.1", self.cluster_id, "one", 5]),
            _packed({"produce.1": 1}),
            b"\0\x01\0\0" + b"\x91" * 65_536,
            b"\0\x01\0\x10" + b"\x99\xa7fetch.1\x01\0\0\0\x90\0\xc2" + b"\x91" * 65_536,
            _packed(["fetch.1", -1, 0, 0, 0, []]),
            _packed(["fetch.1", 1, 0, 0, 2**63, []]),
        ]

    def events(self) -> list[dict[str, object]]:
        return [line for node in self.cluster.nodes for line in log_lines(node)]


def _packed(head: object) -> bytes:
    packed: bytes = msgpack.packb(head)
    return len(packed).to_bytes(4, "big") + packed


@pytest_asyncio.fixture
async def attacked(cluster: LocalCluster, tmp_path: Path) -> AsyncIterator[Attacked]:
    """The state before the test must be the state after it, and no pickle was loaded."""
    trap = tmp_path / "loaded"
    async with Admin(cluster.bootstrap) as admin:
        before = await state_of(cluster, admin, TOPIC)
        description = await admin.describe_topic(TOPIC)
        leader = description.partitions[0].leader
        assert leader is not None
        cluster_id = (await admin.cluster()).cluster_id
        yield Attacked(cluster, leader, description.id_bytes, cluster_id, trap)
        assert await state_of(cluster, admin, TOPIC) == before
    assert is_empty(tmp_path)


async def until_closed(data: Endpoint, sent: bytes, *, then_end: bool = False) -> bytes:
    """Send bytes to the port, and return the bytes that arrived until the node closed the connection."""
    reader, writer = await asyncio.open_connection(data.host, data.port)
    try:
        writer.write(sent)
        if then_end:
            writer.write_eof()
        received = b""
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(ConnectionError):
                while piece := await reader.read(65536):
                    received += piece
        return received
    finally:
        writer.transport.abort()


def requested(path: str, *data: bytes) -> bytes:
    """A client's first bytes, by hand: preface, settings, a request for a stream and DATA frames."""
    fields = [(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", path)]
    headers = raw_frame(1, 0x4, 1, Encoder().encode(fields))
    return PREFACE + settings_frame() + headers + b"".join(data_frame(1, piece) for piece in data)


def goaway(received: bytes) -> str:
    """The text of the node's last frame."""
    (frame,) = only(parse(received), GoAwayFrame)
    return frame.additional_data.decode()


def is_empty(folder: Path) -> bool:
    return not list(folder.iterdir())


# --- The connection ---------------------------------------------------------------------------------------------------


async def test_bytes_that_are_not_http_2(attacked: Attacked) -> None:
    """Random bytes, HTTP/1.1, TLS, a pickle; and silence. The node names its protocol, if it can."""
    sent = [noise(seed) for seed in range(8)] + [HEAD, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", attacked.pickle]
    answers = await asyncio.gather(*(until_closed(attacked.leader, one) for one in [*sent, b"", PREFACE[:7]]))
    told = answers[sent.index(HEAD)]
    assert told.startswith(b"HTTP/1.1 400 ") and b"HTTP/2" in told


async def test_truncated_and_enormous_frames(attacked: Attacked) -> None:
    for sent in (
        PREFACE,
        PREFACE + settings_frame()[:5],
        requested(PRODUCE),
        requested(PRODUCE) + b"\0\x40\0\0\0\0\0\0\x01half of a frame",
        requested(PRODUCE, b"\0\0\x10\0", b"half of a message"),
        requested(rp.REPLICATION_PATH, b"\0\0\x10\0"),
        requested(qp.QUORUM_PATH, b"\0\0\x10\0"),
    ):
        await until_closed(attacked.leader, sent, then_end=True)
    enormous = raw_frame(1, 0x4, 3, b"x" * 100)
    for sent, word in (
        (requested(PRODUCE) + b"\xff\xff\xff" + enormous[3:], ""),
        (requested(PRODUCE) + raw_frame(9, 0, 1, b"x" * 40), ""),
        (requested(PRODUCE) + data_frame(77, b"nobody's"), ""),
        *((requested(path, b"\xff\xff\xff\xff"), "limit") for path in (*REQUEST_PATHS, *LINK_PATHS)),
    ):
        assert word in goaway(await until_closed(attacked.leader, sent))


async def test_unknown_paths(attacked: Attacked) -> None:
    for path in ("/v1", "/raftlog.replication/..", "/raftlog.shutdown", "/v1/offsets/"):
        async with talking(attacked.leader, path) as talk:
            assert "404" in await talk.end() or "not_found" in await talk.end()


async def test_streams_of_data_at_paths_of_the_api_are_refused(attacked: Attacked) -> None:
    for path, refused in (("/", "405"), ("/v1/cluster", "405"), ("/v1/topics", "4")):
        async with talking(attacked.leader, path) as talk:
            assert f"refused with {refused}" in await talk.end()


# --- Requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", REQUEST_PATHS)
async def test_messages_that_are_no_requests_are_refused(attacked: Attacked, path: str) -> None:
    """Each gets the reason, and the stream continues."""
    query = message_of(OffsetsRequest(7, [OffsetQuery(attacked.topic_id, 0, -1)]))
    empty = produce_message(attacked.topic_id, 0, b"")
    for data in (attacked.leader, attacked.other):
        async with talking(data, path) as talk:
            for message in attacked.rubbish():
                answer = await talk.ask(message)
                assert isinstance(answer, ErrorResponse), (message[:40], answer)
                code = "unsupported_version" if b"produce.9" in message else "invalid_request"
                assert (answer.correlation_id, answer.error) == (-1, code) and answer.detail
            # The valid one gets its ordinary answer, or is refused because it came to the wrong stream.
            answer = await talk.ask(empty if path == PRODUCE else query)
            assert not isinstance(answer, ErrorResponse), answer
            answer = await talk.ask(query if path == PRODUCE else empty)
            if path != FORWARD:
                assert isinstance(answer, ErrorResponse) and answer.error == "invalid_request"
                assert path in answer.detail


@pytest.mark.parametrize("path", (PRODUCE, FORWARD))
async def test_batches_that_lie_are_refused(attacked: Attacked, path: str) -> None:
    """All of them on one stream."""
    async with talking(attacked.leader, path) as talk:
        for number, (lie, batch) in enumerate(LIES.items()):
            answer = await talk.ask(produce_message(attacked.topic_id, 0, batch, number=number))
            assert isinstance(answer, ProduceResponse) and answer.correlation_id == number, (lie, answer)
            (produced,) = answer.partitions
            assert produced.error in {"corrupt_batch", "invalid_request", "batch_too_large"}, (lie, produced)
            assert produced.detail


async def test_partitions_and_offsets_that_do_not_exist(attacked: Attacked) -> None:
    async with talking(attacked.leader, PRODUCE) as talk:
        for topic, partition in ((bytes(16), 0), (attacked.topic_id, 9), (attacked.topic_id, 2**31 - 1)):
            answer = await talk.ask(produce_message(topic, partition, GOOD))
            assert isinstance(answer, ProduceResponse)
            assert answer.partitions[0].error in {"unknown_topic", "unknown_partition", "not_leader"}, answer
    async with talking(attacked.leader, FETCH) as talk:
        for offset, code in ((3, "offset_out_of_range"), (2**62, "offset_out_of_range")):
            asked = [FetchPartition(attacked.topic_id, 0, offset, 1 << 20)]
            fetched = await talk.ask(message_of(FetchRequest(1, 0, 0, 1 << 20, asked)))
            assert isinstance(fetched, FetchResponse)
            assert [p.error for p in fetched.partitions] == [code]


# --- Links between brokers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", LINK_PATHS)
async def test_messages_that_no_broker_sends_close_the_link(attacked: Attacked, path: str) -> None:
    """The link is closed, the log has the reason, and the brokers' own links stay open."""
    dropped = "replication link dropped" if path == rp.REPLICATION_PATH else "quorum_link_dropped"
    before = [line for line in attacked.events() if line["event"] == dropped]
    rubbish = attacked.rubbish()
    for message in rubbish:
        async with talking(attacked.leader, path) as talk:
            talk.send(message)
            await talk.end()

    async def all_told() -> list[dict[str, object]] | None:
        told = [line for line in attacked.events() if line["event"] == dropped][len(before) :]
        return told if len(told) >= len(rubbish) else None

    # The quorum's thread closes the link, and the broker's loop writes the line a moment later.
    told = await eventually(all_told, f"the log has {len(rubbish)} reasons")
    assert len(told) == len(rubbish)
    assert all(line["detail"] and line["peer"] == NO_BROKER for line in told)


async def test_invalid_followers(attacked: Attacked) -> None:
    """One of another cluster, one of an older incarnation, one that identifies itself twice, three that do not identify
    themselves at all."""
    subscription = rp.Subscription(1, attacked.topic_id, 0, 0, 0, 2, 2)
    ours = attacked.cluster_id
    for frames in (
        [rp.Hello("another cluster", 1, 99)],
        [rp.Hello(ours, 1, 0)],
        [rp.Hello(ours, 2**31 - 1, 99), rp.Hello(ours, 2**31 - 1, 99)],
        [rp.SubscribeFrame([subscription])],
        [rp.AckFrame(2**62, [rp.AckEntry(1, 2**62, 2**62)])],
        [rp.UnsubscribeFrame([1])],
    ):
        async with talking(attacked.leader, rp.REPLICATION_PATH) as talk:
            for frame in frames:
                talk.send(b"".join(bytes(part) for part in rp.encode(frame)))  # type: ignore[arg-type]
            await talk.end()


async def test_invalid_voters(attacked: Attacked) -> None:
    """One of another cluster, an observer that sends nonsense or claims to be another, one with another disk, one that
    does not identify itself."""
    ours = attacked.cluster_id
    observer = qp.Hello(qp.PROTOCOL_VERSION, ours, 77, bytes(16))
    for frames in (
        [qp.Hello(qp.PROTOCOL_VERSION, "another cluster", 1, bytes(16))],
        [observer, qp.EngineFrame(b"\x93\x01\x02\x03")],
        [observer, qp.BrokerHeartbeat(1, 5, 2**62, True)],
        [observer, qp.Propose(1, b"\x91\x01", True)],
        [qp.Hello(qp.PROTOCOL_VERSION, ours, 1, bytes(16))],
        [qp.Hello(999, ours, 1, bytes(16))],
        [qp.EngineFrame(b"\x93\x01\x02\x03")],
        [qp.BrokerHeartbeat(1, 5, 2**62, True)],
        [qp.Propose(1, b"\x91\x01", True)],
    ):
        async with talking(attacked.leader, qp.QUORUM_PATH) as talk:
            for frame in frames:
                talk.send(bytes(qp.encode(frame)))  # type: ignore[arg-type]
            await talk.end()


async def test_the_cluster_works_while_it_is_attacked(cluster: LocalCluster, tmp_path: Path) -> None:
    """Producers' records arrive once and in order, and no leader is deposed, while every port gets invalid input."""
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic("working", 3, replication_factor=3)
        await all_in_sync(admin, "working")
        before = await state_of(cluster, admin, TOPIC)
        async with Traffic(cluster.bootstrap, "working", 3) as traffic:
            await traffic.grows()
            attack = asyncio.create_task(storm(cluster, pickled(str(tmp_path / "loaded"))))
            for _ in range(5):
                await traffic.grows(by=20)
            await attack
            await traffic.grows()
        await check_exactly(cluster.bootstrap, traffic)
        assert await state_of(cluster, admin, TOPIC) == before
    assert is_empty(tmp_path)


async def storm(cluster: LocalCluster, pickle: bytes) -> None:
    """Send invalid input to every port and path, on many connections at once."""
    for seed in range(10):
        rubbish = [noise(seed), noise(seed, 200_000), HEAD, pickle, PREFACE + noise(seed)]
        rubbish += [requested(path, noise(seed, 20_000)) for path in (*REQUEST_PATHS, *LINK_PATHS)]
        ports = [endpoint for node in cluster.nodes for endpoint in (node.api, node.data)]
        await asyncio.gather(*(until_closed(port, one, then_end=True) for port in ports for one in rubbish))
