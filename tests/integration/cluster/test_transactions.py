"""Transactions on a real cluster, by hand: raw batches, decisions over HTTP, and the records that readers get (S13).

A leader dies between decision and marker; a transaction that is never ended is aborted at its timeout.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from raftlog import Admin
from raftlog.cli.nodes.local_cluster import LocalCluster, LocalNode
from raftlog.records.batch import RecordBatch, split_batches
from raftlog.wire import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ProducedPartition,
    ProduceResponse,
    decode_response,
)
from tests.support.clusters.cluster import (
    all_in_sync,
    eventually,
    known_everywhere,
    next_leader,
    node_api,
    running_cluster,
)
from tests.support.clusters.wire import ask_raw, ask_raw_bytes, message_of, produce_message
from tests.support.partitions.transaction_logs import batch_of, key

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with running_cluster() as running:
        yield running


class Hand:
    """A writer of transactions to a topic of two partitions, batch by batch."""

    def __init__(self, cluster: LocalCluster, topic: str, topic_id: bytes) -> None:
        self.cluster = cluster
        self.topic = topic
        self.topic_id = topic_id
        self.avoided = -1
        """A node that gets no requests."""

    @property
    def node(self) -> LocalNode:
        return next(node for node in self.cluster.nodes if node.running and node.node_id != self.avoided)

    async def post(self, path: str, **body: Any) -> dict[str, Any]:
        async with node_api(self.node) as api:
            answer = await api.post(path, body)
        assert answer.status == 200, answer.body
        found: dict[str, Any] = msgspec.json.decode(answer.body)
        return found

    async def block(self, count: int, timeout_ms: int = 60_000) -> int:
        found = await self.post("/v1/transactions/blocks", count=count, timeout_ms=timeout_ms)
        return int(found["first_producer_id"])

    async def write(self, producer_id: int, partition: int, *values: bytes, sequence: int = 0) -> int:
        """Return the end offset, acknowledged."""

        async def once() -> int | None:
            now_ms = int(time.time() * 1000)  # Retention is on.
            batch = batch_of(key(producer_id), *values, sequence=sequence, timestamp_ms=now_ms)
            answer = await ask_raw(self.node.api, "/v1/produce", produce_message(self.topic_id, partition, batch))
            assert isinstance(answer, ProduceResponse)
            (produced,) = answer.partitions
            assert isinstance(produced, ProducedPartition)
            # The leader may not know the block yet, or not lead yet: the same batch again is not another one.
            assert produced.error in {"", "replica_not_available", "not_enough_replicas", "leader_not_available"}
            return None if produced.error else produced.base_offset + len(values)

        return await eventually(once, f"a write of producer {producer_id}")

    async def commit(self, producer_id: int, ends: dict[int, int], *, visible_ms: int = 20_000) -> dict[str, Any]:
        topics = [{"topic_id": self.topic_id.hex(), "end_offsets": sorted(ends.items())}]
        output = {"producer_id": producer_id, "producer_epoch": 0, "topics": topics}
        return await self.post("/v1/transactions/commit", transactions=[output], visible_within_ms=visible_ms)

    async def read(self, partition: int, isolation: int = 1) -> tuple[list[bytes | None], int, int]:
        """(values, last stable offset, high watermark)."""
        asked = FetchRequest(1, 0, 0, 1 << 20, [FetchPartition(self.topic_id, partition, 0, 1 << 20)], isolation)
        head, body = decode_response(await ask_raw_bytes(self.node.api, "/v1/fetch", message_of(asked)))
        assert isinstance(head, FetchResponse)
        (found,) = head.partitions
        assert not found.error, found
        values: list[bytes | None] = []
        for batch in map(RecordBatch, split_batches(body)):
            header = batch.header
            aborted = any(
                (one.producer_id, one.producer_epoch) == (header.producer_id, header.producer_epoch)
                and one.first_offset <= header.base_offset < one.end_offset
                for one in found.aborted
            )
            values += [] if aborted else batch.values()
        return values, found.last_stable_offset, found.high_watermark

    async def read_json(self, partition: int, isolation: str) -> list[str]:
        async with node_api(self.node) as api:
            found = await api.get(f"/v1/topics/{self.topic}/partitions/{partition}/records?isolation={isolation}")
        assert found.status == 200, found.body
        return [record["value"] for record in msgspec.json.decode(found.body)["records"]]


async def hand_for(cluster: LocalCluster, topic: str) -> Hand:
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic(topic, 2, replication_factor=3)
        await all_in_sync(admin, topic)
    description = await known_everywhere(cluster, topic)
    return Hand(cluster, topic, bytes.fromhex(description.id))


async def test_all_of_a_committed_transaction_and_nothing_of_an_aborted_one(cluster: LocalCluster) -> None:
    """S13, over both partitions, by the wire protocol and as JSON."""
    hand = await hand_for(cluster, "both")
    first = await hand.block(2)
    kept, dropped = first, first + 1
    ends = {}
    for partition in (0, 1):
        await hand.write(dropped, partition, b"no", b"no")
        ends[partition] = await hand.write(kept, partition, b"yes")
    late = await hand.write(kept, 0, b"late", sequence=1)
    assert late > ends[0]
    for partition in (0, 1):
        assert await hand.read(partition) == ([], 0, 3 + (partition == 0))
    assert (await hand.commit(kept, ends, visible_ms=0))["producers"] == []
    await hand.post("/v1/transactions/abort", transactions=[{"producer_id": dropped, "producer_epoch": 0}])
    for partition in (0, 1):

        async def settled(partition: int = partition) -> bool:
            _, stable, high = await hand.read(partition)
            return stable == high > 3

        await eventually(settled, "markers in both partitions")
        assert (await hand.read(partition))[0] == [b"yes"]
        assert await hand.read_json(partition, "read_committed") == ["yes"]
        everything = ["no", "no", "yes", *(["late"] if partition == 0 else [])]
        assert await hand.read_json(partition, "read_uncommitted") == everything
    again = await hand.commit(kept, ends)
    assert again["visible"], "a commit that is asked for again waits for nobody"


async def test_a_transaction_that_is_never_ended_is_aborted_at_its_timeout(cluster: LocalCluster) -> None:
    hand = await hand_for(cluster, "forgotten")
    producer = await hand.block(1, timeout_ms=1_500)
    await hand.write(producer, 0, b"left")
    async with Admin(cluster.bootstrap) as admin:
        leader = (await admin.describe_topic("forgotten")).partitions[0].leader
    assert leader is not None
    async with node_api(cluster.nodes[leader]) as api:
        listed = await api.get("/v1/transactions")
    assert listed.status == 200 and f'"producer_id":{producer}' in listed.body.decode().replace(" ", "")

    async def settled() -> bool:
        values, stable, high = await hand.read(0)
        return values == [] and stable == high == 2

    await eventually(settled, "its marker")


async def test_a_new_leader_writes_the_markers_that_the_dead_one_did_not_write(cluster: LocalCluster) -> None:
    """The leader dies at the moment of the decision; the commit nevertheless becomes visible as a whole. (This test
    must be the last: the node stays dead.)"""
    hand = await hand_for(cluster, "deaths")
    producer = await hand.block(1)
    ends = {partition: await hand.write(producer, partition, b"x") for partition in (0, 1)}
    async with Admin(cluster.bootstrap) as admin:
        partition = (await admin.describe_topic("deaths")).partitions[0]
        assert partition.leader is not None
        hand.avoided = partition.leader
        committing = asyncio.create_task(hand.commit(producer, ends, visible_ms=0))
        await asyncio.sleep(0)
        cluster.kill_node(partition.leader)
        await asyncio.gather(committing, return_exceptions=True)
        await next_leader(admin, "deaths", 0, partition.leader_epoch)
    assert (await hand.commit(producer, ends))["visible"]
    for number in (0, 1):
        values, stable, high = await hand.read(number)
        assert (values, stable, high) == ([b"x"], 2, 2)
