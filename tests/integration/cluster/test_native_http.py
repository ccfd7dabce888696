"""The native HTTP API in a cluster whose nodes die: streams that resume, retries, conditions, leases, transactions.

Any node serves any of them (S1, S3, S8, S13).
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from raftlog import Admin
from raftlog.cli.nodes.local_cluster import LocalCluster
from tests.support.clusters.cluster import PATIENCE_S, eventually, running_cluster

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with running_cluster(3) as cluster:
        yield cluster


class Native:
    """Requests to the nodes of a cluster."""

    def __init__(self, cluster: LocalCluster, session: aiohttp.ClientSession) -> None:
        self.cluster = cluster
        self.session = session

    def url(self, node: int, path: str) -> str:
        return f"http://{self.cluster.nodes[node].api}{path}"

    async def call(self, node: int, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        data = None if body is None else io.BytesIO(json.dumps(body).encode())
        given = {**({} if body is None else {"Content-Type": "application/json"}), **headers}
        async with self.session.request(method, self.url(node, path), data=data, headers=given) as answer:
            text = await answer.read()
            return answer.status, json.loads(text) if text else None

    async def ok(self, node: int, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """Ask until the answer is no retriable error: a leader may be dying."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    status, document = await self.call(node, method, path, body, **headers)
                except aiohttp.ClientConnectionError:
                    node = (node + 1) % 3
                    continue
                if status < 300:
                    return document
                assert status in (408, 503, 504), (status, document)
                await asyncio.sleep(0.1)

    async def put(self, node: int, topic: str, *values: Any, partition: int | None = None, **headers: str) -> Any:
        where = "" if partition is None else f"?partition={partition}"
        records = {"records": [{"value": value} for value in values]}
        return await self.ok(node, "POST", f"/v1/topics/{topic}/records{where}", records, **headers)

    async def values(self, topic: str, partition: int = 0, node: int = 0) -> list[Any]:
        found = await self.ok(node, "GET", f"/v1/topics/{topic}/partitions/{partition}/records")
        return [one["value"] for one in found["records"]]

    async def leader(self, topic: str, partition: int = 0) -> int:
        document = await self.ok(0, "GET", f"/v1/topics/{topic}")
        leader: int = document["partitions"][partition]["leader"]
        return leader


@asynccontextmanager
async def native(cluster: LocalCluster, topic: str, partitions: int = 1) -> AsyncIterator[Native]:
    async with Admin(str(cluster.nodes[0].api)) as admin:
        await admin.create_topic(topic, partitions)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(PATIENCE_S)) as session:
        yield Native(cluster, session)


@asynccontextmanager
async def killed(cluster: LocalCluster, node: int) -> AsyncIterator[None]:
    """A node is killed, and started again afterwards."""
    await asyncio.to_thread(cluster.kill_node, node)
    try:
        yield
    finally:
        cluster.start_node(node)
        await asyncio.to_thread(cluster.wait_ready, PATIENCE_S)


async def reached(found: Collection[Any], count: int) -> bool | None:
    return len(found) >= count or None


async def read_stream(
    api: Native, node: int, query: str, count: int, cursor: str, got: dict[tuple[int, int], Any]
) -> str:
    """Read a stream until there are `count` records in all, or it breaks. Return the cursor."""
    headers = {"Accept": "application/x-ndjson"} | ({"Last-Event-ID": cursor} if cursor else {})
    try:
        async with api.session.get(api.url(node, f"/v1/stream?{query}"), headers=headers) as response:
            assert response.status == 200, await response.text()
            async for line in response.content:
                event = json.loads(line)
                cursor = event["cursor"]
                if event["type"] == "records":
                    for one in event["records"]:
                        place = (event["partition"], one["offset"])
                        assert place not in got, "a record came twice"
                        got[place] = one["value"]
                if event["type"] == "end" or len(got) >= count:
                    return cursor
    except aiohttp.ClientError:
        pass
    return cursor


async def test_a_stream_goes_on_at_other_nodes_and_skips_nothing_s3(cluster: LocalCluster) -> None:
    async with native(cluster, "streamed", 6) as api:
        got: dict[tuple[int, int], Any] = {}
        count = 150

        async def write() -> None:
            for number in range(count):
                await api.put(0, "streamed", number, partition=number % 6, **{"Idempotency-Key": f"n-{number}"})

        async def read() -> None:
            node, cursor = 2, ""
            while len(got) < count:
                cursor = await read_stream(api, node, "topic=streamed&start=earliest", count, cursor, got)
                node = 0 if node == 2 else 2
                await asyncio.sleep(0.05)

        async with asyncio.timeout(PATIENCE_S):
            tasks = [asyncio.create_task(write()), asyncio.create_task(read())]
            await eventually(lambda: reached(got, count // 3), "a third of the records")
            async with killed(cluster, 2):
                await asyncio.gather(*tasks)
        assert sorted(got.values()) == sorted(map(str, range(count))), "every record once"


async def test_a_retry_at_another_node_after_a_failover_appends_nothing_s1(cluster: LocalCluster) -> None:
    async with native(cluster, "orders") as api:
        first = await api.put(0, "orders", "tea", "milk", **{"Idempotency-Key": "order-1"})
        leader = await api.leader("orders")
        others = [node for node in range(3) if node != leader]
        async with killed(cluster, leader):
            for node in others:
                again = await api.put(node, "orders", "tea", "milk", **{"Idempotency-Key": "order-1"})
                assert again == first
            body = {"records": [{"value": "coffee"}]}
            where = "/v1/topics/orders/records"
            status, told = await api.call(others[0], "POST", where, body, **{"Idempotency-Key": "order-1"})
            assert (status, told["code"]) == (422, "idempotency_key_reused")
        assert await api.values("orders") == ["tea", "milk"]


async def test_of_writers_at_all_nodes_one_gets_the_expected_offset(cluster: LocalCluster) -> None:
    async with native(cluster, "ledger") as api:
        where = "/v1/topics/ledger/records?partition=0"

        async def write(writer: int, count: int) -> int:
            """Append this number of records, each behind everything that it knows."""
            end = refused = 0
            for number in range(count):
                while True:
                    body = {"records": [{"value": f"{writer}-{number}"}]}
                    match = {"If-Match": f'"{end}"', "Idempotency-Key": f"{writer}-{number}"}
                    status, told = await api.call(writer % 3, "POST", where, body, **match)
                    if status == 200:
                        assert told["batches"][0]["base_offset"] == end
                        end += 1
                        break
                    assert (status, told["code"]) == (412, "log_end_moved"), told
                    refused += 1
                    end = told["log_end_offset"]
            return refused

        async with asyncio.timeout(PATIENCE_S):
            refused = await asyncio.gather(*(write(writer, 10) for writer in range(4)))
        assert sum(refused) > 0, "there was no contention"
        found = await api.values("ledger")
        assert sorted(found) == sorted(f"{writer}-{number}" for writer in range(4) for number in range(10))


async def test_leases_survive_the_death_of_nodes_and_skip_nothing_s8(cluster: LocalCluster) -> None:
    async with native(cluster, "jobs", 3) as api:
        count = 60
        for number in range(count):
            await api.put(0, "jobs", number, partition=number % 3)
        done: list[str] = []
        alive = [0, 1, 2]
        asked = {"topics": ["jobs"], "max_records": 5, "lease_ms": 1_000, "max_wait_ms": 300}

        async def work(worker: int) -> None:
            turn = worker
            while len(set(done)) < count:
                turn += 1
                node = alive[turn % len(alive)]
                try:
                    status, told = await api.call(node, "POST", "/v1/groups/workers/leases", asked)
                    if status != 200 or told["lease"] is None:
                        assert status in (200, 503, 504), told
                        continue
                    lease = told["lease"]
                    if turn % 5 == 0:
                        continue  # This worker dies: its records go to another.
                    path = f"/v1/groups/workers/leases/{lease['id']}/acknowledge"
                    node = alive[(turn + 1) % len(alive)]
                    status, told = await api.call(node, "POST", path, {})
                    if status == 200:
                        done.extend(one["value"] for one in lease["records"])
                    else:
                        assert status in (409, 503, 504), told
                except aiohttp.ClientError:
                    await asyncio.sleep(0.05)

        async with asyncio.timeout(PATIENCE_S):
            tasks = [asyncio.create_task(work(worker)) for worker in range(4)]
            await eventually(lambda: reached(set(done), count // 4), "a quarter of the records")
            alive.remove(1)
            async with killed(cluster, 1):
                await asyncio.gather(*tasks)
        assert sorted(set(done), key=int) == [str(number) for number in range(count)], "every record was acknowledged"
        left = await api.ok(0, "GET", "/v1/groups/workers/leases")
        assert left == {"leases": []}
        offsets = await api.ok(2, "GET", "/v1/groups/workers/offsets")
        assert [one["offset"] for one in offsets["offsets"]] == [count // 3] * 3


async def test_a_transaction_needs_nothing_but_json_s13(cluster: LocalCluster) -> None:
    async with native(cluster, "books", 2) as api:
        topic_id = (await api.ok(0, "GET", "/v1/topics/books"))["id"]
        await api.put(0, "books", "before", partition=0)

        async def write(node: int, key: Any, sequence: int, partition: int, *values: str) -> int:
            where = (
                f"/v1/topics/books/records?partition={partition}&producer_id={key['producer_id']}"
                f"&producer_epoch={key['producer_epoch']}&sequence={sequence}"
            )
            records = {"records": [{"value": value} for value in values]}
            first = await api.ok(node, "POST", where, records)
            assert await api.ok((node + 1) % 3, "POST", where, records) == first, "a retry appends nothing (S1)"
            base: int = first["batches"][0]["base_offset"]
            return base + len(values)

        key = await api.ok(0, "POST", "/v1/transactions/initialize", {"transactional_id": "books-1"})
        ends = [await write(0, key, 0, 0, "a", "b"), await write(1, key, 0, 1, "x")]
        ends[0] = await write(2, key, 2, 0, "c")
        assert await api.values("books") == ["before"]
        commit = {
            "transactions": [{**key, "topics": [{"topic_id": topic_id, "end_offsets": [[0, ends[0]], [1, ends[1]]]}]}],
            "group_offsets": [
                {"group": "readers", "ranges": [{"topic_id": topic_id, "partition": 0, "start": -1, "end": 1}]}
            ],
            "visible_within_ms": 20_000,
        }
        ended = await api.ok(1, "POST", "/v1/transactions/commit", commit)
        assert ended["visible"]
        assert await api.values("books", 0, node=2) == ["before", "a", "b", "c"]
        assert await api.values("books", 1, node=0) == ["x"]
        offsets = await api.ok(2, "GET", "/v1/groups/readers/offsets")
        assert [one["offset"] for one in offsets["offsets"]] == [1]
        (key,) = ended["producers"]
        await write(0, key, 0, 1, "never seen")
        await api.ok(1, "POST", "/v1/transactions/abort", {"transactions": [key]})
        await api.put(0, "books", "after", partition=1)

        async def seen() -> bool | None:
            return await api.values("books", 1) == ["x", "after"] or None

        await eventually(seen, "the record behind the aborted one")
