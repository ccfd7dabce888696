"""The client and a cluster of real processes: every way to write and to read, and a leader that is stopped without
dying.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pytest

from raftlog import Admin, Consumer, Producer
from raftlog.cli.nodes.local_cluster import LocalCluster, is_ready
from raftlog.client.consuming import channels
from raftlog.client.consuming.channels import SessionChannel
from raftlog.errors import InvalidRequest
from raftlog.partitioner import partition_for_key
from tests.support.clusters.cluster import PATIENCE_S, all_in_sync, eventually, running_cluster
from tests.support.recorded import recorded

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with running_cluster() as running:
        yield running


async def values_by_partition(cluster: LocalCluster, topic: str, count: int) -> dict[int, list[bytes | None]]:
    """Read the first `count` records of a topic, as a later reader would."""
    found: dict[int, list[bytes | None]] = {}
    async with Consumer(cluster.bootstrap, topic) as consumer, asyncio.timeout(PATIENCE_S):
        while sum(map(len, found.values())) < count:
            batch = await consumer.next_batch()
            if batch is not None:
                assert batch.start_offset == len(found.setdefault(batch.partition, []))
                found[batch.partition] += batch.values()
    return found


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
async def test_every_way_to_write(cluster: LocalCluster, compression: str) -> None:
    topic = f"ways-{compression}"
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic(topic, partitions=3)
    singles = [b"single-%d" % number for number in range(500)]
    waited = [b"waited-%d" % number for number in range(500)]
    listed = [b"listed-%d" % number for number in range(5000)]
    columns = [b"column-%d" % number for number in range(5000)]
    keys = [b"key-%d" % (number % 100) for number in range(5000)]
    async with Producer(cluster.bootstrap, compression=compression, batch_bytes=16 * 1024) as producer:
        for value in singles:
            producer.send(topic, value)
        waiting = [producer.send_and_wait(topic, value, partition=1) for value in waited]
        await producer.send_many(topic, listed, keys=keys)
        await producer.send_many(topic, pa.array(columns), partition=2)
        placed = [await record for record in waiting]
    found = await values_by_partition(cluster, topic, 11_000)
    everything = sorted(value for values in found.values() for value in values if value is not None)
    assert everything == sorted([*singles, *waited, *listed, *columns])
    assert [found[1][place.offset] for place in placed] == waited
    assert [value for value in found[2] if value is not None and value.startswith(b"column")] == columns
    for number, values in found.items():
        mine = [value for value, key in zip(listed, keys, strict=True) if partition_for_key(key, 3) == number]
        assert [value for value in values if value is not None and value.startswith(b"listed")] == mine


async def test_every_way_to_read(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic("read")
        async with Producer(cluster.bootstrap) as producer:
            values = [b"%d" % number for number in range(2000)]
            await producer.send_many("read", values, timestamps=range(1_000_000, 1_002_000))
        assert (await admin.offsets("read", 0)).latest == 2000
        assert await admin.offset_for_timestamp("read", 0, 1_000_700) == (700, 1_000_700)
    async with Consumer(cluster.bootstrap, "read", start="@1000700") as consumer:
        assert [record.offset for record in await consumer.poll(10)] == list(range(700, 710))
        async for record in consumer:
            assert (record.offset, record.value, record.timestamp_ms) == (710, b"710", 1_000_710)
            break
        batch = await consumer.next_batch()
        assert batch is not None
        table = batch.to_arrow()
        assert table.column("value").to_pylist() == values[711 : batch.end_offset]
        await consumer.seek(0, "latest")
        assert await consumer.poll(timeout=0.2) == []
        assert (consumer.positions, consumer.lag) == ({0: 2000}, {0: 0})
    async with Consumer(cluster.bootstrap, "read", start=5000) as consumer:
        with pytest.raises(InvalidRequest, match="not between 0 and 2000"):
            await consumer.poll(timeout=10)


async def test_a_leader_that_is_stopped_without_dying(cluster: LocalCluster) -> None:
    """SIGSTOP: its sockets stay open and it does not answer. Another leader is elected, and unanswered batches are sent
    there; when the stopped one continues, it is fenced. Every record is there once, in order (S1)."""
    topic = "stopped"
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic(topic)
        leader = (await all_in_sync(admin, topic))[topic].partitions[0].leader
    assert leader is not None
    process = cluster.nodes[leader].process
    assert process is not None
    sent: list[bytes] = []
    consumed: list[bytes | None] = []

    async def consume() -> None:
        async with Consumer(cluster.bootstrap, topic) as consumer:
            async for record in consumer:
                consumed.append(record.value)

    consuming = asyncio.create_task(consume())
    async with Producer(cluster.bootstrap, linger_ms=1) as producer:

        async def send(count: int) -> None:
            for _ in range(count):
                sent.append(b"%d" % len(sent))
                producer.send(topic, sent[-1])
                await asyncio.sleep(0.002)

        await send(300)
        await producer.flush()
        os.kill(process.pid, signal.SIGSTOP)
        try:
            await send(300)
            async with asyncio.timeout(PATIENCE_S):
                await producer.flush()
        finally:
            os.kill(process.pid, signal.SIGCONT)
        await send(300)
        await producer.flush()
    async with asyncio.timeout(PATIENCE_S):
        while len(consumed) < len(sent):  # noqa: ASYNC110 - another task counts
            await asyncio.sleep(0.01)
    consuming.cancel()
    assert consumed == sent
    assert (await values_by_partition(cluster, topic, len(sent)))[0] == sent
    async with Admin(cluster.bootstrap) as admin:
        await all_in_sync(admin, topic)


MANY = 30
"""Partitions: every broker leads ten, and most of them are idle at any time."""


async def test_fetch_sessions_continue_when_a_leader_is_killed(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer with a session at each broker loses one of them, and its partitions continue at the others, in the
    existing sessions; then the broker returns and leads again. Each record is read once, in order (S1)."""
    made: list[SessionChannel] = recorded(monkeypatch, channels, "SessionChannel")
    topic = "sessions"
    sent: dict[int, list[bytes]] = {number: [] for number in range(MANY)}
    found: dict[int, list[bytes | None]] = {number: [] for number in range(MANY)}
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic(topic, MANY)
        leaders = [partition.leader for partition in (await all_in_sync(admin, topic))[topic].partitions]
        victim = leaders[0]
        assert victim is not None and set(leaders) == {0, 1, 2}
        async with (
            Producer(cluster.bootstrap, linger_ms=1) as producer,
            Consumer(cluster.bootstrap, topic, max_wait_ms=300) as consumer,
        ):

            async def write(partitions: Iterable[int]) -> None:
                for number in partitions:
                    sent[number].append(b"%d/%d" % (number, len(sent[number])))
                    producer.send(topic, sent[number][-1], partition=number)
                await producer.flush()

            async def read_all() -> None:
                async with asyncio.timeout(PATIENCE_S):
                    while sum(map(len, found.values())) < sum(map(len, sent.values())):
                        for record in await consumer.poll():
                            assert record.offset == len(found[record.partition])
                            found[record.partition].append(record.value)
                assert found == sent

            await write(range(MANY))
            await read_all()
            before = sessions_in_use(made)
            assert set(before) == {0, 1, 2}
            await asyncio.to_thread(cluster.kill_node, victim)
            try:
                for number in range(3):
                    await write(range(number, MANY, 7))
                await write(range(MANY))
                await read_all()
                after = sessions_in_use(made)
                assert after == {node_id: session for node_id, session in before.items() if node_id != victim}
                assert {session.begun for session in after.values()} == {1}, "no session begins again"
            finally:
                cluster.start_node(victim)
            await eventually(lambda: asyncio.to_thread(is_ready, cluster.nodes[victim].api), "it takes requests")
            await all_in_sync(admin, topic)
            await admin.elect_leaders([(topic, number) for number in range(MANY)])
            await write(range(MANY))
            await read_all()
            assert sessions_in_use(made)[victim] is not before[victim]


def sessions_in_use(made: Iterable[SessionChannel]) -> dict[int, SessionChannel]:
    """The sessions on usable connections, by node."""
    return {channel.connection.node_id: channel for channel in made if channel.connection.usable}
