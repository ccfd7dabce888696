"""Consumers of the REST Proxy API in a cluster of three: any node serves any of them, also when its owner has died
(S8)."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import random
import re
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from raftlog import Admin
from raftlog.cli.nodes.local_cluster import LocalCluster
from tests.support.clusters.cluster import PATIENCE_S, running_cluster

pytestmark = pytest.mark.integration

BINARY = "application/vnd.kafka.binary.v2+json"
V2 = "application/vnd.kafka.v2+json"
ANSWER_BYTES = 300_000
"""Far more than a small receive buffer takes."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with running_cluster(3, rest_consumer_timeout_ms="60000") as cluster:
        yield cluster


class Rest:
    """Requests to the nodes of a cluster."""

    def __init__(self, cluster: LocalCluster, session: aiohttp.ClientSession) -> None:
        self.cluster = cluster
        self.session = session

    async def call(self, node: int, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Return status and document of the answer; a node that stops or starts is asked again."""
        given = {"Content-Type": V2, **headers} if body is not None else headers
        data = None if body is None else io.BytesIO(json.dumps(body).encode())
        url = f"http://{self.cluster.nodes[node].api}{path}"
        async with self.session.request(method, url, data=data, headers=given) as answer:
            text = await answer.read()
            return answer.status, json.loads(text) if text else None

    async def ok(self, node: int, method: str, path: str, body: Any = None, **headers: str) -> Any:
        status, document = await self.call(node, method, path, body, **headers)
        assert status in (200, 204), (node, method, path, status, document)
        return document

    async def read(self, node: int, instance: str, timeout: int = 3_000) -> list[tuple[int, int, str]]:
        """Return partition, offset and value of the next records."""
        found = await self.ok(node, "GET", f"{instance}/records?timeout={timeout}", Accept=BINARY)
        return [(one["partition"], one["offset"], base64.b64decode(one["value"]).decode()) for one in found]

    async def read_all(self, node: int, instance: str, count: int) -> list[tuple[int, int, str]]:
        """Read until this number of records has come."""
        found: list[tuple[int, int, str]] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(found) < count:
                found += await self.read(node, instance)
        return found

    async def produce(self, node: int, topic: str, *values: str, partition: int = 0) -> None:
        records = [{"value": base64.b64encode(one.encode()).decode(), "partition": partition} for one in values]
        await self.ok(node, "POST", f"/topics/{topic}", {"records": records}, **{"Content-Type": BINARY})

    async def consumer(self, node: int, group: str, name: str, topic: str, **settings: str) -> str:
        """Create a consumer that reads a topic from its beginning; return its path."""
        body = {"name": name, "format": "binary", "auto.offset.reset": "earliest", **settings}
        made = await self.ok(node, "POST", f"/consumers/{group}", body)
        path = f"/consumers/{group}/instances/{name}"
        assert made == {"instance_id": name, "base_uri": f"http://{self.cluster.nodes[node].api}{path}"}
        await self.ok(node, "POST", f"{path}/subscription", {"topics": [topic]})
        return path


@asynccontextmanager
async def rest(cluster: LocalCluster, topic: str, partitions: int = 1) -> AsyncIterator[Rest]:
    async with Admin(str(cluster.nodes[0].api)) as admin:
        await admin.create_topic(topic, partitions)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(PATIENCE_S)) as session:
        yield Rest(cluster, session)


async def committed(api: Rest, node: int, instance: str, topic: str, partition: int = 0) -> int:
    told = await api.ok(node, "GET", f"{instance}/offsets?topic={topic}&partition={partition}")
    offset: int = told["offsets"][0]["offset"]
    return offset


async def test_every_node_serves_the_same_consumer(cluster: LocalCluster) -> None:
    async with rest(cluster, "shared") as api:
        await api.produce(0, "shared", "a", "b", "c")
        consumer = await api.consumer(0, "g-shared", "c1", "shared")
        assert await api.read_all(1, consumer, 3) == [(0, 0, "a"), (0, 1, "b"), (0, 2, "c")]
        await api.produce(0, "shared", "d")
        assert await api.read_all(2, consumer, 1) == [(0, 3, "d")]
        assert await committed(api, 1, consumer, "shared") == -1
        await api.ok(2, "POST", f"{consumer}/offsets")
        assert await committed(api, 0, consumer, "shared") == 4
        assert await api.ok(1, "GET", f"{consumer}/assignments") == {
            "partitions": [{"topic": "shared", "partition": 0}]
        }
        assert await api.ok(1, "GET", f"{consumer}/subscription") == {"topics": ["shared"]}
        await api.ok(2, "DELETE", consumer)
        for node in range(3):
            status, told = await api.call(node, "GET", f"{consumer}/records")
            assert (status, told["error_code"]) == (404, 40403)


async def test_an_answer_that_was_cut_comes_again_and_is_not_committed_s8(cluster: LocalCluster) -> None:
    """Schedules V5a and V5b: what was handed to the socket is not delivered."""
    async with rest(cluster, "cut") as api:
        await api.produce(0, "cut", *(str(number) * 100_000 for number in range(8)))
        consumer = await api.consumer(1, "g-cut", "c1", "cut")
        node = cluster.nodes[2].api
        async with asyncio.timeout(PATIENCE_S):
            while True:  # until the partition is assigned, and the answer has begun
                with socket.create_connection((node.host, node.port)) as connection:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
                    request = (
                        f"GET {consumer}/records?timeout=2000 HTTP/1.1\r\nHost: {node}\r\nAccept: {BINARY}\r\n\r\n"
                    )
                    connection.sendall(request.encode())
                    connection.settimeout(PATIENCE_S)
                    head = await asyncio.to_thread(connection.recv, 2_000)
                    if b'"offset":0' in head or len(head) > 1_000:
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                        break
        status, told = await api.call(0, "POST", f"{consumer}/offsets")
        assert (status, told["error_code"]) == (409, 40903)
        assert [offset for _, offset, _ in await api.read_all(0, consumer, 8)] == list(range(8))
        await api.ok(0, "POST", f"{consumer}/offsets")
        assert await committed(api, 0, consumer, "cut") == 8


async def test_two_requests_at_once_get_different_records(cluster: LocalCluster) -> None:
    async with rest(cluster, "twice") as api:
        consumer = await api.consumer(1, "g-twice", "c1", "twice")
        await api.produce(0, "twice", *map(str, range(100)))
        found = await asyncio.gather(*(api.read(node, consumer, 1_500) for node in (0, 1, 2, 0)))
        offsets = [offset for part in found for _, offset, _ in part]
        offsets += [offset for _, offset, _ in await api.read_all(1, consumer, 100 - len(offsets))]
        assert sorted(offsets) == list(range(100))


async def test_a_taken_name_fences_its_former_program_s8(cluster: LocalCluster) -> None:
    async with rest(cluster, "taken") as api:
        await api.produce(0, "taken", "a", "b")
        consumer = await api.consumer(0, "g-taken", "c1", "taken")
        assert len(await api.read_all(0, consumer, 2)) == 2
        assert await api.consumer(1, "g-taken", "c1", "taken") == consumer
        status, _ = await api.call(0, "POST", f"{consumer}/offsets")
        assert status == 409, "the new program has got nothing yet"
        assert len(await api.read_all(2, consumer, 2)) == 2, "it starts at the committed offsets"


async def test_offsets_are_committed_by_the_convention_of_the_setting(cluster: LocalCluster) -> None:
    async with rest(cluster, "compat") as api:
        await api.produce(0, "compat", "a", "b")
        consumer = await api.consumer(0, "g-compat", "c1", "compat")
        await api.read_all(0, consumer, 2)
        offsets = {"offsets": [{"topic": "compat", "partition": 0, "offset": 0}]}
        assert await api.ok(1, "POST", f"{consumer}/offsets", offsets) == []
        assert await committed(api, 2, consumer, "compat") == 1, "Confluent: the record that was processed"
        lower = {"offsets": [{"topic": "compat", "partition": 0, "offset": 1}]}
        await api.ok(1, "POST", f"{consumer}/offsets", lower)
        await api.ok(1, "POST", f"{consumer}/offsets", offsets)
        assert await committed(api, 2, consumer, "compat") == 2, "a late commit lowers nothing (V6)"


async def test_partitions_may_be_assigned_and_positions_moved(cluster: LocalCluster) -> None:
    async with rest(cluster, "manual", 2) as api:
        await api.produce(0, "manual", "a", "b", partition=0)
        await api.produce(0, "manual", "x", "y", partition=1)
        await api.ok(0, "POST", "/consumers/g-manual", {"name": "m", "auto.offset.reset": "earliest"})
        consumer = "/consumers/g-manual/instances/m"
        both = {"partitions": [{"topic": "manual", "partition": number} for number in (0, 1)]}
        await api.ok(1, "POST", f"{consumer}/assignments", both)
        assert await api.ok(2, "GET", f"{consumer}/assignments") == both
        assert sorted(await api.read_all(2, consumer, 4)) == [(0, 0, "a"), (0, 1, "b"), (1, 0, "x"), (1, 1, "y")]
        seek = {"offsets": [{"topic": "manual", "partition": 0, "offset": 1}]}
        await api.ok(0, "POST", f"{consumer}/positions", seek)
        assert await api.read_all(1, consumer, 1) == [(0, 1, "b")]
        await api.ok(2, "POST", f"{consumer}/positions/beginning", both)
        assert len(await api.read_all(0, consumer, 4)) == 4
        await api.ok(2, "POST", f"{consumer}/positions/end", both)
        assert await api.read(0, consumer, 200) == []
        status, _ = await api.call(0, "POST", f"{consumer}/offsets")
        assert status == 409, "nothing was delivered since the position was moved"
        status, _ = await api.call(0, "POST", f"{consumer}/subscription", {"topics": ["manual"]})
        assert status == 409


async def test_requests_are_taken_as_other_proxies_take_them(cluster: LocalCluster) -> None:
    """A slash at the end, the type of records with a body that has none, `{}` as an empty commit."""
    async with rest(cluster, "habits") as api:
        await api.produce(0, "habits", "a")
        body = {"name": "h", "format": "binary", "auto.offset.reset": "earliest"}
        settings = {**body, "topic.metadata.refresh.interval.ms": 100}
        await api.ok(0, "POST", "/consumers/g-habits/", settings, **{"Content-Type": BINARY})
        consumer = "/consumers/g-habits/instances/h"
        await api.ok(1, "POST", f"{consumer}/subscription/", {"topic_pattern": "habi.*"}, **{"Content-Type": BINARY})
        assert await api.ok(2, "GET", f"{consumer}/subscription/") == {"topics": ["habits"]}
        status, told = await api.call(2, "POST", f"{consumer}/offsets", {})
        assert (status, told["error_code"]) == (409, 40903), "as for an empty body: nothing was delivered"
        assert await api.read_all(1, consumer, 1) == [(0, 0, "a")]
        await api.ok(2, "POST", f"{consumer}/offsets/", {})
        assert await committed(api, 0, consumer, "habits") == 1
        for path in ("positions", "positions/end"):
            named = {"topic": "faulty", "partition": 0, **({"offset": 1} if path == "positions" else {})}
            wanted = {"offsets" if path == "positions" else "partitions": [named]}
            status, told = await api.call(0, "POST", f"{consumer}/{path}", wanted)
            assert (status, told["error_code"]) == (409, 40903), "it is not assigned to this consumer"
        await api.ok(0, "DELETE", f"{consumer}/")


async def test_a_dead_owner_loses_nothing_s8(cluster: LocalCluster) -> None:
    """Another node takes over, at the committed offsets; no request is refused."""
    async with rest(cluster, "orphan") as api:
        await api.produce(0, "orphan", "a", "b", "c", "d")
        consumer = await api.consumer(2, "g-orphan", "c1", "orphan", **{"auto.commit.enable": "false"})
        assert len(await api.read_all(0, consumer, 4)) == 4
        offsets = {"offsets": [{"topic": "orphan", "partition": 0, "offset": 1}]}
        await api.ok(1, "POST", f"{consumer}/offsets", offsets)
        await asyncio.to_thread(cluster.kill_node, 2)
        try:
            async with asyncio.timeout(PATIENCE_S):
                again = await api.read_all(1, consumer, 2)
            assert again == [(0, 2, "c"), (0, 3, "d")]
            await api.ok(0, "POST", f"{consumer}/offsets")
            assert await committed(api, 1, consumer, "orphan") == 4
        finally:
            cluster.start_node(2)
            await asyncio.to_thread(cluster.wait_ready, PATIENCE_S)
        await api.produce(0, "orphan", "e")
        assert await api.read_all(2, consumer, 1) == [(0, 4, "e")]


class Program:
    """One client behind a round robin of all nodes: reads, now and then breaks off, commits what it got by empty
    commits."""

    def __init__(self, api: Rest, instance: str, seed: int) -> None:
        self.api = api
        self.instance = instance
        self.random = random.Random(seed)
        self.got: dict[tuple[int, int], str] = {}
        self.refused: list[tuple[int, Any]] = []
        self._turn = seed

    def _node(self) -> int:
        self._turn += 1
        return self._turn % 3

    async def step(self) -> None:
        """Do one thing. A node that is dead, or just starting, is no error: the load balancer asks the next."""
        choice = self.random.random()
        try:
            if choice < 0.2:
                await self._break_off(self._node())
            elif choice < 0.4:
                status, told = await self.api.call(self._node(), "POST", f"{self.instance}/offsets")
                self._judge(status, told, fine=(200, 409))
            else:
                path = f"{self.instance}/records?timeout=300&max_bytes={ANSWER_BYTES}"
                status, told = await self.api.call(self._node(), "GET", path, Accept=BINARY)
                self._judge(status, told, fine=(200,))
                self._take(told if status == 200 else [])
        except (aiohttp.ClientError, OSError, TimeoutError, EOFError):
            await asyncio.sleep(0.05)

    def _take(self, records: list[dict[str, Any]]) -> None:
        for one in records:
            self.got[one["partition"], one["offset"]] = base64.b64decode(one["value"]).decode()

    def _judge(self, status: int, told: Any, *, fine: tuple[int, ...]) -> None:
        if status not in fine and status < 500:
            self.refused.append((status, told))

    async def _break_off(self, node: int) -> None:
        """Read the beginning of an answer, and reset the connection: but not of an answer that the kernel may have
        acknowledged as a whole, which then counts as delivered."""
        where = self.api.cluster.nodes[node].api
        raw = socket.socket()
        raw.setblocking(False)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        writer: asyncio.StreamWriter | None = None
        try:
            await asyncio.get_running_loop().sock_connect(raw, (where.host, where.port))
            reader, writer = await asyncio.open_connection(sock=raw, limit=1_024)
            path = f"{self.instance}/records?timeout=300&max_bytes={ANSWER_BYTES}"
            writer.write(f"GET {path} HTTP/1.1\r\nHost: {where}\r\nAccept: {BINARY}\r\n\r\n".encode())
            async with asyncio.timeout(10):
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(re.search(rb"Content-Length: (\d+)", head)[1])  # type: ignore[index]
                if length < ANSWER_BYTES // 2:
                    self._take(json.loads(await reader.readexactly(length)) if b" 200 " in head else [])
                else:
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        finally:
            if writer is not None:
                writer.transport.abort()
            else:
                raw.close()


async def test_three_programs_lose_nothing_while_nodes_die_s8(cluster: LocalCluster) -> None:
    """Every record reaches some program, and the committed offsets never pass one that did not."""
    rounds, pause_s = 3, 4.0
    async with rest(cluster, "storm", 6) as api:
        total = 600
        values = {(number % 6, number // 6): f"value {number} {'x' * 3_000}" for number in range(total)}
        instances = [await api.consumer(0, "g-storm", f"c{number}", "storm") for number in range(3)]
        programs = [Program(api, instance, seed) for seed, instance in enumerate(instances)]
        stopped = asyncio.Event()

        async def work(program: Program) -> None:
            while not stopped.is_set():
                await program.step()

        tasks = [asyncio.ensure_future(work(program)) for program in programs]
        for first in range(0, total, 100):
            records = [
                {"value": base64.b64encode(value.encode()).decode(), "partition": partition}
                for (partition, _), value in list(values.items())[first : first + 100]
            ]
            await api.ok(0, "POST", "/topics/storm", {"records": records}, **{"Content-Type": BINARY})
        for turn in range(rounds):
            victim = (turn + 1) % 3
            await asyncio.to_thread(cluster.kill_node, victim)
            await asyncio.sleep(pause_s)
            cluster.start_node(victim)
            await asyncio.to_thread(cluster.wait_ready, PATIENCE_S)

        def seen() -> dict[tuple[int, int], str]:
            return {place: value for program in programs for place, value in program.got.items()}

        async with asyncio.timeout(2 * PATIENCE_S):
            while len(seen()) < total:
                for task in tasks:
                    if task.done():
                        task.result()
                await asyncio.sleep(0.1)
        stopped.set()
        await asyncio.gather(*tasks)
        assert seen() == values
        assert [refused for program in programs for refused in program.refused] == []
        for partition in range(6):
            offset = await committed(api, 0, instances[0], "storm", partition)
            assert offset <= 100
