"""Invalid input at the API port of real nodes: an error that names the fault, and no effect (S11).

`tests/integration/http_api/test_bad_input.py` has the API's own cases in front of a fake broker; these tests cover
whole nodes, whose API has a leader, forwarding, logs and a quorum behind it.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import socket
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from raftlog import Admin
from raftlog.cli.nodes.local_cluster import LocalCluster
from raftlog.wire import (
    CONTENT_TYPE,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    OffsetQuery,
    OffsetsRequest,
    ProduceRequest,
    ProduceResponse,
)
from tests.support.clusters.attack import GOOD, MIB, lying_batches, noise, pickled, state_of
from tests.support.clusters.cluster import NodeApi, all_in_sync, known_everywhere, node_api, running_cluster
from tests.support.clusters.wire import ask_raw, message_of, produce_message, small_batch

pytestmark = pytest.mark.integration

TOPIC = "t"
RECORDS = f"/v1/topics/{TOPIC}/records"
READ = f"/v1/topics/{TOPIC}/partitions/0/records"
LIES = lying_batches()
TRICKLE_S = 60.0


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
        assert (await api.post(RECORDS, b"one\ntwo\n", "text/plain")).status == 200


class Attacked:
    """The leader's API, another node's, and the topic."""

    def __init__(self, leader: NodeApi, other: NodeApi, cluster: LocalCluster, topic_id: bytes) -> None:
        self.leader = leader
        self.other = other
        self.cluster = cluster
        self.topic_id = topic_id

    @property
    def both(self) -> tuple[NodeApi, NodeApi]:
        return self.leader, self.other

    async def ask(self, api: NodeApi, path: str, message: bytes) -> Any:
        node = next(node for node in self.cluster.nodes if node.api.port == api.port)
        return await ask_raw(node.api, path, message)


@pytest_asyncio.fixture
async def attacked(cluster: LocalCluster) -> AsyncIterator[Attacked]:
    """The state before the test must be the state after it."""
    async with Admin(cluster.bootstrap) as admin:
        before = await state_of(cluster, admin, TOPIC)
        description = await admin.describe_topic(TOPIC)
        leader = description.partitions[0].leader
        assert leader is not None
        async with (
            node_api(cluster.nodes[leader]) as leaders,
            node_api(cluster.nodes[(leader + 1) % 3]) as others,
        ):
            yield Attacked(leaders, others, cluster, description.id_bytes)
            await leaders.is_well()
            await others.is_well()
        assert await state_of(cluster, admin, TOPIC) == before


@pytest.fixture(scope="module", autouse=True)
def trickle(cluster: LocalCluster) -> Iterator[Future[bytes]]:
    """A body that arrives at one byte per second, from the first test on, because the node's timeout is longer than a
    test."""

    def send() -> bytes:
        api = cluster.nodes[0].api
        with socket.create_connection((api.host, api.port), timeout=1.0) as connection:
            head = f"POST {RECORDS} HTTP/1.1\r\nHost: {api}\r\nContent-Type: text/plain\r\nContent-Length: 1000\r\n\r\n"
            connection.sendall(head.encode())
            received, deadline = b"", time.monotonic() + TRICKLE_S
            while time.monotonic() < deadline:
                try:
                    connection.sendall(b"x")
                    piece = connection.recv(65536)
                except TimeoutError:
                    continue
                except ConnectionError:
                    break
                if not piece:
                    break
                received += piece
            return received

    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(send)


@pytest.mark.parametrize("seed", range(5))
async def test_random_bytes(attacked: Attacked, seed: int) -> None:
    bytes_without_lines = noise(seed).replace(b"\n", b"") + b"\r\n\r\n"
    (await attacked.leader.raw_answer(bytes_without_lines)).problem("invalid_request")


async def test_bytes_that_are_not_http_1(attacked: Attacked, tmp_path: Path) -> None:
    """A preface of HTTP/2 that ends wrong, a TLS hello, a pickle."""
    trap = tmp_path / "loaded"
    for sent in (
        b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        pickled(str(trap)).replace(b"\n", b"") + b"\r\n\r\n",
    ):
        (await attacked.leader.raw_answer(sent)).problem("invalid_request")
    assert not trap.exists()


async def test_content_types(attacked: Attacked) -> None:
    for media_type in ("text/csv", "application/x-www-form-urlencoded", "application/vnd.kafka.json.v2+json"):
        (await attacked.leader.post(RECORDS, b"{}", media_type)).problem("unsupported_media_type")
    (await attacked.leader.post("/v1/produce", GOOD, "application/json")).problem("unsupported_media_type")


async def test_bodies_beyond_the_bound(attacked: Attacked) -> None:
    head = f"POST {RECORDS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
    announced = await attacked.leader.raw_answer(f"{head}Content-Length: {10**12}\r\n\r\n".encode())
    announced.problem("body_too_large")

    async def much() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield bytes(MIB)

    (await attacked.leader.post(RECORDS, much(), "text/plain")).problem("body_too_large")
    (await attacked.leader.post("/v1/produce", much(), CONTENT_TYPE)).problem("body_too_large")


async def test_a_bomb(attacked: Attacked) -> None:
    bomb = gzip.compress(bytes(300 * MIB), 9)
    before = peak_bytes(attacked.cluster)
    for path, media_type in (
        (RECORDS, "text/plain"),
        ("/v1/produce", CONTENT_TYPE),
        ("/v1/topics", "application/json"),
    ):
        answer = await attacked.leader.post(path, bomb, media_type, headers={"Content-Encoding": "gzip"})
        assert answer.document["code"] in {"body_too_large", "unsupported_media_type"}, answer
    assert peak_bytes(attacked.cluster) - before < 100 * MIB


def peak_bytes(cluster: LocalCluster) -> int:
    """The peak memory of any node."""
    peaks = []
    for node in cluster.nodes:
        assert node.process is not None
        status = Path(f"/proc/{node.process.pid}/status").read_text()
        peaks.append(int(status.partition("VmHWM:")[2].split()[0]) * 1024)
    return max(peaks)


async def test_endless_and_meaningless_json(attacked: Attacked) -> None:
    deep = b"[" * 1_000_000 + b"]" * 1_000_000
    for body, code in (
        (b'{"records":[{"value":' + deep + b"}]}", "invalid_json"),
        (deep, "invalid_request"),
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b'{"records":[{"value":1}]} {}', "invalid_json"),
        (b'{"records":[{"value":NaN}]}', "invalid_json"),
        (b'{"records":[{"valeu":1}]}', "invalid_request"),
        (b'{"records":{}}', "invalid_request"),
        (b"\xff\xfe{\0}\0", "invalid_json"),
    ):
        answer = await attacked.leader.post(RECORDS, body)
        assert answer.document["code"] in {code, "invalid_json", "invalid_request"}, (body[:40], answer)
        assert answer.status == 400 and answer.document["detail"]


async def test_topics_and_partitions_that_do_not_exist(attacked: Attacked) -> None:
    for api in attacked.both:
        (await api.post("/v1/topics/nobody/records", b"x", "text/plain")).problem("unknown_topic")
        (await api.get("/v1/topics/nobody/partitions/0/records")).problem("unknown_topic")
        (await api.post(f"{RECORDS}?partition=7", b"x", "text/plain")).problem("unknown_partition")
        (await api.get(f"/v1/topics/{TOPIC}/partitions/7/records")).problem("unknown_partition")
        (await api.call("DELETE", "/v1/topics/nobody")).problem("unknown_topic")


async def test_invalid_topics(attacked: Attacked) -> None:
    for body, code in (
        ({"name": "../../etc/passwd"}, "invalid_topic_name"),
        ({"name": "x" * 250}, "invalid_topic_name"),
        ({"name": ""}, "invalid_topic_name"),
        ({"name": "many", "partitions": 10**9}, "invalid_request"),
        ({"name": "none", "partitions": 0}, "invalid_request"),
        ({"name": "wide", "replication_factor": 99}, "invalid_request"),
        ({"name": "odd", "configs": {"retention.ms": "soon"}}, "invalid_config"),
        ({"name": "odd", "configs": {"no.such.thing": "1"}}, "invalid_config"),
        ({"name": TOPIC}, "topic_exists"),
    ):
        (await attacked.other.post("/v1/topics", body)).problem(code)
    (await attacked.other.call("PATCH", f"/v1/topics/{TOPIC}", json={"set": {"flush": "never"}})).problem(
        "invalid_config"
    )
    (await attacked.other.post(f"/v1/topics/{TOPIC}/partitions", {"count": 1})).problem("invalid_request")


@pytest.mark.parametrize("lie", LIES)
async def test_batches_that_lie_are_refused(attacked: Attacked, lie: str) -> None:
    """To the leader, and to another node that has to forward it."""
    for api in attacked.both:
        answer = await attacked.ask(api, "/v1/produce", produce_message(attacked.topic_id, 0, LIES[lie]))
        assert isinstance(answer, ProduceResponse), answer
        (produced,) = answer.partitions
        assert produced.error in {"corrupt_batch", "invalid_request", "batch_too_large"}, produced
        assert produced.detail and produced.base_offset == -1


async def test_batches_beyond_the_bound_or_out_of_time(attacked: Attacked) -> None:
    soon = int(time.time() * 1000) + 2 * 3_600_000
    for batch, code in (
        (small_batch(os.urandom(MIB + 1)), "batch_too_large"),
        (small_batch(b"x", timestamp_ms=soon), "timestamp_out_of_range"),
        (small_batch(b"x", timestamp_ms=2**62), "timestamp_out_of_range"),
    ):
        for api in attacked.both:
            answer = await attacked.ask(api, "/v1/produce", produce_message(attacked.topic_id, 0, batch))
            assert [p.error for p in answer.partitions] == [code]
            assert answer.partitions[0].detail
    for timestamp in (soon, -7, 2**63):
        records = {"records": [{"value": "fine"}, {"value": "late", "timestamp": timestamp}]}
        (await attacked.other.post(RECORDS, records)).problem("timestamp_out_of_range")


async def test_producers_with_wrong_sequences(attacked: Attacked) -> None:
    """A sequence that was never begun, and one with a gap."""
    granted = (await attacked.other.post("/v1/producers")).document
    ids = {"producer_id": granted["producer_id"], "producer_epoch": granted["producer_epoch"]}
    batches = [small_batch(b"x", base_sequence=sequence, **ids) for sequence in (5, 2**31 - 1)]
    messages = [produce_message(attacked.topic_id, 0, batch) for batch in batches]
    # Over HTTP/1.1 one request may overtake another, so the leader waits a while for the missing one.
    asked = [attacked.ask(api, "/v1/produce", message) for message in messages for api in attacked.both]
    for answer in await asyncio.gather(*asked):
        assert answer.partitions[0].error in {"out_of_order_sequence", "unknown_producer_id"}, answer


async def test_invalid_messages(attacked: Attacked, tmp_path: Path) -> None:
    trap = tmp_path / "loaded"
    good = produce_message(attacked.topic_id, 0, GOOD)
    for message in (
        b"",
        b"\xff",
        noise(3),
        good[:3],
        good[:20],
        good[:-1],
        good + b"\0",
        b"\xff\xff\xff\xff" + good[4:],
        b"\0\0\0\0",
        len(pickled(str(trap))).to_bytes(4, "big") + pickled(str(trap)),
        message_of(ProduceRequest(1, -1, 1, [])) + GOOD,
    ):
        for path in ("/v1/produce", "/v1/fetch", "/v1/offsets"):
            told = (await attacked.leader.post(path, message, CONTENT_TYPE)).problem("invalid_request")
            assert told["detail"]
    assert not trap.exists()


async def test_invalid_offsets(attacked: Attacked) -> None:
    for api in attacked.both:
        for offset in ("-1", "1e3", "first", "", "@", "@-5", str(2**63)):
            answer = await api.get(f"{READ}?offset={offset}")
            assert answer.status in {400, 416} and answer.document["detail"], (offset, answer)
        beyond = (await api.get(f"{READ}?offset=3")).problem("offset_out_of_range")
        assert "3" in beyond["detail"] and "0" in beyond["detail"] and "2" in beyond["detail"]
        far = FetchRequest(1, 0, 0, MIB, [FetchPartition(attacked.topic_id, 0, 2**62, MIB)])
        answer = await attacked.ask(api, "/v1/fetch", message_of(far))
        assert isinstance(answer, FetchResponse)
        assert [p.error for p in answer.partitions] == ["offset_out_of_range"]
        newer = FetchRequest(1, 0, 0, MIB, [FetchPartition(attacked.topic_id, 0, 0, MIB, 2**30)])
        answer = await attacked.ask(api, "/v1/fetch", message_of(newer))
        assert [p.error for p in answer.partitions] == ["unknown_leader_epoch"]
        assert (await api.get(f"/v1/topics/{TOPIC}/partitions/0/offsets?timestamp=-9")).status == 400
    asked = message_of(OffsetsRequest(1, [OffsetQuery(attacked.topic_id, 0, -3)]))
    (await attacked.leader.post("/v1/offsets", asked, CONTENT_TYPE)).problem("invalid_request")


async def test_pages_and_hosts_of_others(attacked: Attacked) -> None:
    for method, path in (("GET", READ), ("POST", RECORDS), ("DELETE", f"/v1/topics/{TOPIC}"), ("POST", "/v1/produce")):
        foreign = await attacked.leader.call(method, path, headers={"Origin": "http://evil.example"})
        foreign.problem("origin_not_allowed")
        renamed = await attacked.leader.call(method, path, headers={"Host": "evil.example"})
        renamed.problem("host_not_allowed")


async def test_a_body_that_trickles_is_given_up(attacked: Attacked, trickle: Future[bytes]) -> None:
    """This test must be the last, so that the others run meanwhile."""
    received = await asyncio.wrap_future(trickle)
    assert b" 408 " in received.partition(b"\r\n")[0] and b"slow_request" in received, received
