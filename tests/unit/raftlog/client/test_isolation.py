"""A consumer and transactions: it sees all of a committed one, nothing of an aborted or open one (S13)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from raftlog import Consumer, Producer
from tests.support.client.fake_cluster import FakeCluster


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as started:
        started.create_topic("t")
        yield started


class Stop(Exception):
    """The transaction is not to be committed."""


async def write(producer: Producer, *values: bytes, commit: bool) -> None:
    try:
        async with producer.transaction() as transaction:
            await transaction.send_many("t", list(values))
            if not commit:
                await transaction.drain()
                for delivery in [transaction.send("t", b"last of it")]:
                    await delivery
                raise Stop
    except Stop:
        assert not commit


async def values(consumer: Consumer, how: str) -> list[bytes | None]:
    """All values that it gets, in one of three ways."""
    found: list[bytes | None] = []
    while consumer.lag.get(0) != 0:
        if how == "records":
            found += [record.value for record in await consumer.poll(timeout=0.05)]
        elif (batch := await consumer.next_batch(timeout=0.05)) is not None:
            found += batch.values() if how == "lists" else batch.to_arrow().column("value").to_pylist()
    return found


@pytest.mark.parametrize("how", ["records", "lists", "arrow"])
async def test_committed_readers_skip_aborted_and_stop_at_open_transactions_s13(cluster: FakeCluster, how: str) -> None:
    log = cluster.topics["t"].partitions[0]
    async with Producer(cluster.bootstrap, transactional_id="p", linger_ms=0) as producer:
        await write(producer, b"a", b"b", commit=True)
        await write(producer, b"never", commit=False)
        await write(producer, b"c", commit=True)
        async with (
            producer.transaction() as transaction,
            Consumer(cluster.bootstrap, "t", max_wait_ms=50) as consumer,
            Consumer(cluster.bootstrap, "t", max_wait_ms=50, isolation="read_uncommitted") as eager,
        ):
            await transaction.send_and_wait("t", b"open")
            assert await values(consumer, how) == [b"a", b"b", b"c"]
            assert await values(eager, how) == [b"a", b"b", b"never", b"last of it", b"c", b"open"]
            assert (consumer.end_offsets, consumer.lag) == ({0: log.last_stable_offset}, {0: 0})
            assert consumer.positions == {0: log.last_stable_offset}
            assert eager.positions == eager.end_offsets == eager.high_watermarks == {0: log.end_offset}
            await transaction.commit()
            assert [record.value for record in await consumer.poll(timeout=5)] == [b"open"]


async def test_latest_for_a_committed_reader_is_before_open_transactions_s13(cluster: FakeCluster) -> None:
    async with Producer(cluster.bootstrap, linger_ms=0) as producer:
        await write(producer, b"before", commit=True)
        async with (
            producer.transaction() as transaction,
            Consumer(cluster.bootstrap, "t", start="latest", max_wait_ms=50) as consumer,
        ):
            await transaction.send_and_wait("t", b"open")
            async with Consumer(cluster.bootstrap, "t", start="latest", max_wait_ms=50) as later:
                await transaction.commit()
                assert [record.value for record in await later.poll(timeout=5)] == [b"open"]
            assert [record.value for record in await consumer.poll(timeout=5)] == [b"open"]
