"""No call blocks the event loop of a node for more than 20 ms: measured by the node's own gauge under load.

The gauge's processor time is that of the loop's thread, so a busy machine adds to it only by colder caches. A turn
consists of every callback that was due at once, so the bound covers more than one call.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from raftlog import Admin, Consumer, Producer
from raftlog.broker.loop_stalls import STALL_SECONDS
from raftlog.cli.nodes.local_cluster import LocalCluster
from raftlog.config import KIB
from tests.support.clusters.cluster import all_in_sync, node_api, running_cluster

pytestmark = pytest.mark.integration

TOPIC = "t"
PARTITIONS = 4
RECORDS = 200_000
JSON_BYTES = 200 * KIB
JSON_REQUESTS = 40
TRIES = 3
"""One measurement may be disturbed, for example by a hypervisor that charges its own time; each is of a node that has
just started."""


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with running_cluster(1) as running:
        yield running


async def test_ordinary_requests_block_the_loop_for_milliseconds(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic(TOPIC, PARTITIONS, replication_factor=1)
        await all_in_sync(admin, TOPIC)
    worst = []
    for _ in range(TRIES):
        await native_clients(cluster)
        await plain_http(cluster)
        found = await event_loop(cluster)
        worst.append(found["worst_processor_ms"])
        assert found["worst_processor_ms"] > 0, "it was measured"
        if worst[-1] < STALL_SECONDS * 1000:
            return
        await asyncio.to_thread(cluster.stop)
        await asyncio.to_thread(cluster.start)
        await asyncio.to_thread(cluster.wait_ready)
    raise AssertionError(f"the loop was held for {worst} ms of processor time")


async def native_clients(cluster: LocalCluster) -> None:
    """Batches of the usual size over HTTP/2, in and out."""
    values = [os.urandom(100) for _ in range(1000)] * (RECORDS // 1000)
    async with Producer(cluster.bootstrap) as producer:
        await producer.send_many(TOPIC, values)
        await producer.flush()
    read = 0
    async with Consumer(cluster.bootstrap, TOPIC, start="earliest") as consumer:
        while read < RECORDS:
            batch = await consumer.next_batch(timeout=30.0)
            assert batch is not None
            read += len(batch)


async def plain_http(cluster: LocalCluster) -> None:
    """Bodies of JSON that are parsed on the loop, and larger ones that are not."""
    one = {"key": "k", "value": {"text": "x" * 100, "number": 1.5}}
    count = JSON_BYTES // len(msgspec.json.encode(one))
    async with node_api(cluster.nodes[0]) as api:
        for size in (count, 8 * count):
            for _ in range(JSON_REQUESTS * count // size):
                assert (await api.post(f"/v1/topics/{TOPIC}/records", {"records": [one] * size})).status == 200
        for partition in range(PARTITIONS):
            path = f"/v1/topics/{TOPIC}/partitions/{partition}/records?offset=earliest"
            assert (await api.get(path)).status == 200


async def event_loop(cluster: LocalCluster) -> dict[str, Any]:
    async with node_api(cluster.nodes[0]) as api:
        answer = await api.get("/v1/health")
    assert answer.status == 200, answer
    found: dict[str, Any] = answer.document["event_loop"]
    assert set(found) == {"stalls", "worst_ms", "worst_processor_ms", "stalls_last_minute", "worst_ms_last_minute"}
    return found
