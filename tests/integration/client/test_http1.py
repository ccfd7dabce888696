"""A client that reaches the HTTP API and no data listener, as behind a proxy: slower, with the same promises."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from raftlog import Admin, Consumer, Producer
from raftlog.cli.nodes.local_cluster import LocalCluster
from raftlog.client.cluster import transport
from raftlog.client.cluster.transport import BrokerConnection, Connection
from raftlog.client.cluster.transport_http1 import ApiConnection
from tests.support.cluster import PATIENCE_S, running_cluster
from tests.support.held_port import HOST, HeldPort

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def reserved() -> Iterator[HeldPort]:
    """Nobody listens there."""
    with HeldPort() as held:
        yield held


@pytest.fixture(scope="module")
def cluster(reserved: HeldPort) -> Iterator[LocalCluster]:
    """Its nodes reach one another; what they tell clients leads nowhere."""
    nowhere = f'{{ host = "{HOST}", port = {reserved.number} }}'
    with running_cluster(node_count=3, **{"data.advertised": nowhere}) as running:
        yield running


async def read(consumer: Consumer, count: int) -> list[tuple[int, int, bytes | None]]:
    records: list[tuple[int, int, bytes | None]] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(records) < count:
            records += [(r.partition, r.offset, r.value) for r in await consumer.poll(1000)]
    return records


def ways(producer: Producer) -> list[Connection]:
    assert producer._sender is not None
    return producer._sender._transport.connections()


@asynccontextmanager
async def a_relay(told: HeldPort, port: int) -> AsyncIterator[None]:
    """From the port that clients are told to the one at which the node listens."""
    pipes: set[asyncio.Task[None]] = set()

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(HOST, port)
        for ends in ((reader, far_writer), (far_reader, writer)):
            pipes.add(asyncio.create_task(pipe(*ends)))

    server = await asyncio.start_server(accept, HOST, told.number)
    try:
        yield
    finally:
        server.close()
        await asyncio.gather(*pipes, return_exceptions=True)


async def test_records_go_through_the_api_and_come_back(cluster: LocalCluster) -> None:
    """S1, where any node takes a request and passes it on."""
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic("through", partitions=3)
    sent = [b"%d" % number for number in range(3000)]
    async with Producer(cluster.bootstrap, batch_bytes=2048) as producer, asyncio.timeout(PATIENCE_S):
        waiting = [producer.send_and_wait("through", value, partition=number % 3) for number, value in enumerate(sent)]
        placed = [await one for one in waiting]
        assert {type(way) for way in ways(producer)} == {ApiConnection}
    async with Consumer(cluster.bootstrap, "through") as consumer:
        found = await read(consumer, len(sent))
    expected = {(place.partition, place.offset, value) for place, value in zip(placed, sent, strict=True)}
    assert sorted(found) == sorted(expected)
    for partition in range(3):
        own = [offset for found_in, offset, _ in found if found_in == partition]
        assert own == list(range(1000)), "each once, in order"
        assert [place.offset for place in placed if place.partition == partition] == own


async def test_without_an_answer_that_is_wanted(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic("unasked", partitions=1)
    async with Producer(cluster.bootstrap, acks=0) as producer, Consumer(cluster.bootstrap, "unasked") as consumer:
        for number in range(100):
            producer.send("unasked", b"%d" % number)
        await producer.flush()
        assert {value for _, _, value in await read(consumer, 100)} == {b"%d" % number for number in range(100)}


async def test_whoever_closes_does_not_wait_for_what_is_on_its_way(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic("closed", partitions=1)
    producer = Producer(cluster.bootstrap, linger_ms=0)
    await producer.send_and_wait("closed", b"first")
    last = producer.send("closed", b"last")
    async with asyncio.timeout(PATIENCE_S):
        await producer.close(flush=False)
    assert last.done()


async def test_it_moves_to_http2_when_that_gets_through(held: HeldPort, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "HTTP2_AGAIN_FIRST", 0.02)
    nowhere = f'{{ host = "{HOST}", port = {held.number} }}'
    with running_cluster(node_count=1, **{"data.advertised": nowhere}) as cluster:
        async with Admin(cluster.bootstrap) as admin:
            await admin.create_topic("moves", partitions=1)
        async with Producer(cluster.bootstrap, linger_ms=0) as producer, asyncio.timeout(PATIENCE_S):
            placed = [await producer.send_and_wait("moves", b"slow")]
            assert [type(way) for way in ways(producer)] == [ApiConnection]
            async with a_relay(held, cluster.nodes[0].data.port):
                while [type(way) for way in ways(producer)] != [BrokerConnection]:
                    placed.append(await producer.send_and_wait("moves", b"meanwhile"))
                placed.append(await producer.send_and_wait("moves", b"fast"))
                assert [place.offset for place in placed] == list(range(len(placed)))
                await producer.close()
