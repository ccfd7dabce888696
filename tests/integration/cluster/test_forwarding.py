"""Any node answers for every partition over HTTP/1.1, whichever node leads; and the nodes' log lines meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

from raftlog import Admin
from raftlog.api.topics import TopicDescription
from raftlog.cli.nodes.local_cluster import LocalCluster, LocalNode
from raftlog.records.batch import RecordBatch, split_batches
from raftlog.wire import (
    TIMESTAMP_EARLIEST,
    TIMESTAMP_LATEST,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    OffsetQuery,
    OffsetsRequest,
    OffsetsResponse,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    decode_response,
    split_body,
)
from tests.support.clusters.cluster import (
    NodeApi,
    all_in_sync,
    check_logs,
    eventually,
    known_everywhere,
    node_api,
    running_cluster,
)
from tests.support.clusters.wire import ask_raw, ask_raw_bytes, message_of, small_batch, talking

pytestmark = pytest.mark.integration

PARTITIONS = 3
T0 = 1_700_000_000_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with running_cluster() as running:
        yield running


@pytest_asyncio.fixture
async def apis(cluster: LocalCluster) -> AsyncIterator[list[NodeApi]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(node_api(node)) for node in cluster.nodes]


async def made(cluster: LocalCluster, name: str) -> TopicDescription:
    """A topic whose partitions are led by three different nodes."""
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic(name, PARTITIONS, replication_factor=3)
        await all_in_sync(admin, name)
    description = await known_everywhere(cluster, name)
    assert sorted(p.leader for p in description.partitions if p.leader is not None) == [0, 1, 2]
    return description


async def test_records_can_be_written_and_read_at_any_node(cluster: LocalCluster, apis: list[NodeApi]) -> None:
    """JSON with every member of a record, through each node to each partition, and read back at each node."""
    await made(cluster, "json")
    expected: list[list[dict[str, Any]]] = [[] for _ in range(PARTITIONS)]
    for number, api in enumerate(apis):
        for partition in range(PARTITIONS):
            records = [
                {
                    "key": f"key-{number}",
                    "value": {"node": number, "price": 1.50},
                    "timestamp": T0 + number,
                    "headers": [{"key": "via", "value": f"node {number}"}, {"key": "raw", "value": {"base64": "/wA="}}],
                },
                {"key": None, "value": None, "timestamp": T0 + 100 + number, "headers": []},
                {"key": {"base64": "/w=="}, "value": "täglich", "timestamp": T0 + 200 + number, "headers": []},
            ]
            answer = await api.post(f"/v1/topics/json/records?partition={partition}", {"records": records})
            assert answer.status == 200, answer
            first = 3 * number
            assert answer.document["offsets"] == [{"partition": partition, "offset": first + i} for i in range(3)]
            expected[partition] += [{"offset": first + i, **record} for i, record in enumerate(records)]
    for api in apis:
        for partition in range(PARTITIONS):
            path = f"/v1/topics/json/partitions/{partition}"
            page = (await api.get(f"{path}/records")).document
            assert page["records"] == expected[partition]
            assert (page["next_offset"], page["high_watermark"], page["log_start_offset"]) == (9, 9, 0)
            offsets = (await api.get(f"{path}/offsets")).document
            assert (offsets["earliest"], offsets["latest"]) == (0, 9)
            found = (await api.get(f"{path}/offsets?timestamp={T0 + 101}")).document
            assert (found["offset"], found["timestamp"]) == (2, T0 + 200)
            assert (await api.get(f"{path}/offsets?timestamp={T0 + 10_000}")).document["offset"] is None


async def test_raw_requests_for_partitions_of_several_leaders(cluster: LocalCluster) -> None:
    """One produce, one fetch, one offsets request for all partitions, at each node; answers are in the order of the
    request."""
    description = await made(cluster, "raw")
    topic = description.id_bytes
    order = [2, 0, 1, 0]
    for number, node in enumerate(cluster.nodes):
        batches = [small_batch(b"%d/%d/%d" % (number, place, p)) for place, p in enumerate(order)]
        targets = [ProducePartition(topic, p, len(batch)) for p, batch in zip(order, batches, strict=True)]
        message = message_of(ProduceRequest(number, -1, 10_000, targets), *batches)
        produced = await ask_raw(node.api, "/v1/produce", message)
        assert isinstance(produced, ProduceResponse) and produced.correlation_id == number
        assert [(p.partition, p.error) for p in produced.partitions] == [(p, "") for p in order]
        # Those for one partition are appended in the given order.
        assert [p.base_offset for p in produced.partitions] == [number, 2 * number, number, 2 * number + 1]
    for node in cluster.nodes:
        asked = [FetchPartition(topic, p, 0, 1 << 20) for p in order[:3]]
        answer = await ask_raw_bytes(node.api, "/v1/fetch", message_of(FetchRequest(7, 0, 0, 1 << 20, asked)))
        fetched, body = decode_response(answer)
        assert isinstance(fetched, FetchResponse)
        read = [
            [value for batch in split_batches(part) for value in RecordBatch(batch).values()]
            for part in split_body(body, [p.length for p in fetched.partitions])
        ]
        assert read == [
            [b"0/0/2", b"1/0/2", b"2/0/2"],
            [b"0/1/0", b"0/3/0", b"1/1/0", b"1/3/0", b"2/1/0", b"2/3/0"],
            [b"0/2/1", b"1/2/1", b"2/2/1"],
        ]
        queries = [OffsetQuery(topic, 0, TIMESTAMP_LATEST), OffsetQuery(topic, 1, TIMESTAMP_EARLIEST)]
        found = await ask_raw(node.api, "/v1/offsets", message_of(OffsetsRequest(9, queries)))
        assert isinstance(found, OffsetsResponse)
        assert [(p.offset, p.error) for p in found.partitions] == [(6, ""), (0, "")]


@pytest.mark.parametrize("partition", range(PARTITIONS))
async def test_a_long_poll_over_several_leaders_is_answered(cluster: LocalCluster, partition: int) -> None:
    """Sent to every node at once, and answered after one record at one leader."""
    description = await made(cluster, f"polled-{partition}")
    asked = [FetchPartition(description.id_bytes, p, 0, 1 << 20) for p in range(PARTITIONS)]
    message = message_of(FetchRequest(1, 50_000, 1, 1 << 20, asked))
    began = time.monotonic()
    polls = [asyncio.create_task(ask_raw(node.api, "/v1/fetch", message)) for node in cluster.nodes]
    done, _ = await asyncio.wait(polls, timeout=0.5)
    assert not done, "there is nothing to tell yet"
    leader = description.partitions[partition].leader
    async with node_api(cluster.nodes[((leader or 0) + 1) % 3]) as api:
        assert (
            await api.post(f"/v1/topics/{description.name}/records?partition={partition}", b"!", "text/plain")
        ).status == 200
    for answer in await asyncio.gather(*polls):
        assert isinstance(answer, FetchResponse)
        assert [(p.partition, p.error, p.length > 0) for p in answer.partitions] == [
            (p, "", p == partition) for p in range(PARTITIONS)
        ]
    assert time.monotonic() - began < 25


async def test_a_poll_without_new_records_is_answered_at_its_timeout(cluster: LocalCluster) -> None:
    description = await made(cluster, "quiet")
    asked = [FetchPartition(description.id_bytes, p, 0, 1 << 20) for p in range(PARTITIONS)]
    began = time.monotonic()
    answer = await ask_raw(cluster.nodes[0].api, "/v1/fetch", message_of(FetchRequest(1, 400, 1, 1 << 20, asked)))
    assert time.monotonic() - began >= 0.4
    assert isinstance(answer, FetchResponse) and [p.error for p in answer.partitions] == [""] * PARTITIONS


async def test_one_failed_partition_of_a_request_does_not_affect_the_others(cluster: LocalCluster) -> None:
    description = await made(cluster, "partly")
    batch = small_batch(b"x")
    places = [(description.id_bytes, 0), (bytes(16), 0), (description.id_bytes, 99), (description.id_bytes, 1)]
    message = message_of(
        ProduceRequest(1, -1, 10_000, [ProducePartition(*place, len(batch)) for place in places]), *[batch] * 4
    )
    for node in cluster.nodes:
        answer = await ask_raw(node.api, "/v1/produce", message)
        assert isinstance(answer, ProduceResponse)
        assert [p.error for p in answer.partitions] == ["", "unknown_topic", "unknown_partition", ""]
        assert all(p.detail for p in answer.partitions if p.error)


async def test_the_data_port_does_not_forward_but_names_the_leader(cluster: LocalCluster) -> None:
    """A native client knows the leader; a forwarded request is not forwarded again."""
    description = await made(cluster, "native")
    batch = small_batch(b"x")
    for info in description.partitions:
        message = message_of(
            ProduceRequest(5, -1, 10_000, [ProducePartition(description.id_bytes, info.partition, len(batch))]), batch
        )
        for node in cluster.nodes:
            for path in ("/v1/produce", "/raftlog.forward"):
                answer = await produced_when_open(node, path, message)
                if node.node_id == info.leader:
                    assert answer.partitions[0].error == ""
                else:
                    assert answer.partitions[0].error == "not_leader"
                    assert answer.partitions[0].leader == info.leader
    async with node_api(cluster.nodes[0]) as api:
        for partition in range(PARTITIONS):
            path = f"/v1/topics/native/partitions/{partition}/offsets"
            assert (await api.get(path)).document["latest"] == 2


async def produced_when_open(node: LocalNode, path: str, message: bytes) -> ProduceResponse:
    """The answer once the node has opened its replica of the new topic."""

    async def ask() -> ProduceResponse | None:
        async with talking(node.data, path) as talk:
            answer = await talk.ask(message)
        assert isinstance(answer, ProduceResponse)
        return None if answer.partitions[0].error == "leader_not_available" else answer

    return await eventually(ask, f"node {node.node_id} has its replica open")


async def test_every_line_of_every_log_names_cluster_and_node(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap) as admin:
        cluster_id = (await admin.cluster()).cluster_id
    lines = check_logs(cluster)
    assert {line["cluster"] for line in lines} == {cluster_id}
    for node in cluster.nodes:
        events = [line["event"] for line in lines if line["node"] == str(node.node_id)]
        assert "started" in events and "registered" in events
    assert any(line["event"] == "replica" and "leader" in line["state"] for line in lines)
