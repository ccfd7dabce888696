"""A client that reaches the HTTP API and no data listener, as behind a proxy: slower, with the same guarantees."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from raftlog import Admin, Consumer, Producer
from raftlog.cli.nodes.local_cluster import LocalCluster
from raftlog.client.cluster import transport
from raftlog.client.cluster.transport import BrokerConnection
from raftlog.client.cluster.transport_http1 import ApiConnection
from raftlog.client.producing import sender
from raftlog.errors import InvalidRequest
from tests.support.clusters.cluster import PATIENCE_S, running_cluster
from tests.support.clusters.held_port import HOST, HeldPort
from tests.support.recorded import recorded

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def reserved() -> Iterator[HeldPort]:
    """A port without a listener."""
    with HeldPort() as held:
        yield held


@pytest.fixture(scope="module")
def cluster(reserved: HeldPort) -> Iterator[LocalCluster]:
    """Its nodes reach one another; the data addresses that clients get lead nowhere."""
    nowhere = f'{{ host = "{HOST}", port = {reserved.number} }}'
    with running_cluster(node_count=3, **{"data.advertised": nowhere}) as running:
        yield running


async def read(consumer: Consumer, count: int) -> list[tuple[int, int, bytes | None]]:
    records: list[tuple[int, int, bytes | None]] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(records) < count:
            records += [(r.partition, r.offset, r.value) for r in await consumer.poll(1000)]
    return records


@pytest.fixture
def transports(monkeypatch: pytest.MonkeyPatch) -> list[transport.Transport]:
    """The transports of the producers that the test makes."""
    return recorded(monkeypatch, sender, "Transport")


def ways(transports: list[transport.Transport]) -> list[type]:
    """The kinds of the only producer's connections."""
    (own,) = transports
    return [type(way) for way in own.connections()]


@asynccontextmanager
async def a_relay(told: HeldPort, port: int) -> AsyncIterator[None]:
    """A relay from the port that clients get to the port at which the node listens."""
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


async def test_records_go_through_the_api_and_come_back(
    cluster: LocalCluster, transports: list[transport.Transport]
) -> None:
    """S1, if any node accepts a request and forwards it."""
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic("through", partitions=3)
    sent = [b"%d" % number for number in range(3000)]
    async with Producer(cluster.bootstrap, batch_bytes=2048) as producer, asyncio.timeout(PATIENCE_S):
        waiting = [producer.send_and_wait("through", value, partition=number % 3) for number, value in enumerate(sent)]
        placed = [await one for one in waiting]
        assert set(ways(transports)) == {ApiConnection}
    async with Consumer(cluster.bootstrap, "through") as consumer:
        found = await read(consumer, len(sent))
    expected = {(place.partition, place.offset, value) for place, value in zip(placed, sent, strict=True)}
    assert sorted(found) == sorted(expected)
    for partition in range(3):
        own = [offset for found_in, offset, _ in found if found_in == partition]
        assert own == list(range(1000)), "each once, in order"
        assert [place.offset for place in placed if place.partition == partition] == own


async def test_transactions_go_through_the_api_s13(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic("through-in-transactions", partitions=2)
    async with (
        Producer(cluster.bootstrap, transactional_id="through") as producer,
        Consumer(cluster.bootstrap, "through-in-transactions") as consumer,
        asyncio.timeout(PATIENCE_S),
    ):
        async with producer.transaction(wait="visible") as transaction:
            transaction.send("through-in-transactions", b"seen", partition=0)
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction() as transaction:
                await transaction.send_and_wait("through-in-transactions", b"aborted", partition=1)
                raise ZeroDivisionError
        async with producer.transaction() as transaction:
            transaction.send("through-in-transactions", b"seen, too", partition=1)
        assert {value for _, _, value in await read(consumer, 2)} == {b"seen", b"seen, too"}
        with pytest.raises(InvalidRequest) as fenced:
            async with (
                Producer(cluster.bootstrap, transactional_id="through") as other,
                other.transaction(),
                producer.transaction() as transaction,
            ):
                transaction.send("through-in-transactions", b"late", partition=0)
        assert fenced.value.code == "producer_fenced"


async def test_sends_without_acknowledgement(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic("unasked", partitions=1)
    async with Producer(cluster.bootstrap, acks=0) as producer, Consumer(cluster.bootstrap, "unasked") as consumer:
        for number in range(100):
            producer.send("unasked", b"%d" % number)
        await producer.flush()
        assert {value for _, _, value in await read(consumer, 100)} == {b"%d" % number for number in range(100)}


async def test_closing_does_not_wait_for_requests_in_flight(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic("closed", partitions=1)
    producer = Producer(cluster.bootstrap, linger_ms=0)
    await producer.send_and_wait("closed", b"first")
    last = producer.send("closed", b"last")
    async with asyncio.timeout(PATIENCE_S):
        await producer.close(flush=False)
    assert last.done()


async def test_it_moves_to_http2_when_that_works(
    held: HeldPort, transports: list[transport.Transport], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "HTTP2_AGAIN_FIRST", 0.02)
    nowhere = f'{{ host = "{HOST}", port = {held.number} }}'
    with running_cluster(node_count=1, **{"data.advertised": nowhere}) as cluster:
        async with Admin(cluster.bootstrap) as admin:
            await admin.create_topic("moves", partitions=1)
        async with Producer(cluster.bootstrap, linger_ms=0) as producer, asyncio.timeout(PATIENCE_S):
            placed = [await producer.send_and_wait("moves", b"slow")]
            assert ways(transports) == [ApiConnection]
            async with a_relay(held, cluster.nodes[0].data.port):
                while ways(transports) != [BrokerConnection]:
                    placed.append(await producer.send_and_wait("moves", b"meanwhile"))
                placed.append(await producer.send_and_wait("moves", b"fast"))
                assert [place.offset for place in placed] == list(range(len(placed)))
                await producer.close()
