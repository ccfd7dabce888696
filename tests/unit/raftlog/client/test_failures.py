"""The producer during failures, with a cluster in memory: nothing is lost, duplicated or reordered (S1)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from itertools import count

import pytest

from raftlog import Producer
from raftlog.client.producing import sender
from raftlog.errors import Applied, RetriableError
from raftlog.records.batch import parse_header
from raftlog.wire import ProduceRequest
from tests.support.client.fake_cluster import OK, FakeCluster, FakePartition, Fate
from tests.support.clusters.held_port import HeldPort

PIPELINED_MS = 0.01
"""Almost nothing, and not 0: otherwise records wait for the previous answer, and little is in flight."""


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(nodes=3) as started:
        started.create_topic("t")
        yield started


def log(cluster: FakeCluster, partition: int = 0) -> FakePartition:
    return cluster.topics["t"].partitions[partition]


def numbered(first: int, stop: int) -> list[bytes]:
    return [b"%07d" % number for number in range(first, stop)]


def nth(number: int, fate: Fate) -> Callable[[ProduceRequest], Fate]:
    """This fate for one request, counted from 0; the others are executed."""
    requests = count()
    return lambda _: fate if next(requests) == number else OK


async def send_in_small_batches(producer: Producer, values: list[bytes]) -> None:
    """Many requests, several in flight."""
    for start in range(0, len(values), 10):
        await producer.send_many("t", values[start : start + 10], partition=0)
        await asyncio.sleep(0.0001)


@pytest.mark.parametrize("number", [0, 3, 7])
@pytest.mark.parametrize(
    "fate",
    [
        Fate(drop_before=True), Fate(drop_after=True), Fate(error="not_leader"), Fate(error="overloaded"),
        Fate(error="not_enough_replicas"), Fate(error="request_timed_out"), Fate(error="unknown_topic"),
    ],
    ids=str,
)  # fmt: skip
async def test_one_failing_request(cluster: FakeCluster, fate: Fate, number: int) -> None:
    cluster.nodes[1].on_produce = nth(number, fate)
    values = numbered(0, 500)
    async with Producer(cluster.bootstrap, linger_ms=PIPELINED_MS) as producer:
        await send_in_small_batches(producer, values)
    assert log(cluster).values() == values
    assert {parse_header(batch).producer_id for batch in log(cluster).batches} == {1}


async def test_a_resent_batch_gets_its_first_offset(cluster: FakeCluster) -> None:
    cluster.nodes[1].on_produce = nth(1, Fate(drop_after=True))
    async with Producer(cluster.bootstrap, linger_ms=PIPELINED_MS) as producer:
        for number, value in enumerate(numbered(0, 5)):
            assert (await producer.send_and_wait("t", value)).offset == number
    assert log(cluster).duplicates == 1


async def test_answers_may_come_in_any_order(cluster: FakeCluster) -> None:
    holds: list[asyncio.Event] = []

    def hold(_: ProduceRequest) -> Fate:
        holds.append(asyncio.Event())
        return Fate(hold=holds[-1])

    cluster.nodes[1].on_produce = hold
    async with Producer(cluster.bootstrap, linger_ms=PIPELINED_MS) as producer:
        await producer.prepare("t")
        deliveries = []
        for number, value in enumerate(numbered(0, 5)):
            deliveries.append(producer.send("t", value))
            await cluster.until(lambda: len(holds) == number + 1)  # noqa: B023
        for event in reversed(holds):
            event.set()
            await asyncio.sleep(0.005)
        assert [(await delivery).base_offset for delivery in deliveries] == [0, 1, 2, 3, 4]


async def test_no_more_than_five_batches_of_a_partition_are_in_flight(cluster: FakeCluster) -> None:
    held = asyncio.Event()
    node = cluster.nodes[1]
    async with Producer(cluster.bootstrap, linger_ms=PIPELINED_MS, max_in_flight=20) as producer:
        await producer.send("t", b"first")
        node.on_produce = lambda _: Fate(hold=held)
        for number, value in enumerate(numbered(0, 5)):
            producer.send("t", value)
            await cluster.until(lambda: len(node.produces) == number + 2)  # noqa: B023
        for value in numbered(5, 12):
            producer.send("t", value)
            await asyncio.sleep(0.03)
        assert sum(len(request.partitions) for request in node.produces[1:]) == 5
        held.set()
    assert log(cluster).values() == [b"first", *numbered(0, 12)]


async def test_the_leader_moves(cluster: FakeCluster) -> None:
    values = numbered(0, 600)
    async with Producer(cluster.bootstrap, linger_ms=PIPELINED_MS) as producer:
        for start, leader in ((0, 2), (200, 3), (400, 1)):
            await send_in_small_batches(producer, values[start : start + 200])
            cluster.move_leader("t", 0, leader)
    assert log(cluster).values() == values


async def test_the_leader_dies(cluster: FakeCluster) -> None:
    values = numbered(0, 400)
    loop = asyncio.get_running_loop()
    async with Producer(cluster.bootstrap, linger_ms=PIPELINED_MS) as producer:
        await send_in_small_batches(producer, values[:200])
        await cluster.nodes[1].kill()
        sending = asyncio.create_task(send_in_small_batches(producer, values[200:]))
        await asyncio.sleep(0.3)
        cluster.move_leader("t", 0, 2)
        moved = loop.time()
        await sending
        await producer.flush()
        assert loop.time() - moved < 2.5, "going on cost more than noticing"
    assert log(cluster).values() == values


async def test_the_leader_is_stopped_without_dying(cluster: FakeCluster) -> None:
    """It accepts requests and answers none, on either port. Another leads; no caller waits for the stopped one."""
    values = numbered(0, 400)
    loop = asyncio.get_running_loop()
    async with Producer(cluster.bootstrap, linger_ms=PIPELINED_MS) as producer:
        await send_in_small_batches(producer, values[:200])
        cluster.nodes[1].on_produce = lambda _: Fate(ignore=True)
        cluster.nodes[1].api_hangs = True
        sending = asyncio.create_task(send_in_small_batches(producer, values[200:]))
        await asyncio.sleep(0.1)
        cluster.move_leader("t", 0, 2)
        moved = loop.time()
        await sending
        await producer.flush()
        assert loop.time() - moved < sender.LATE_ANSWER + 3.0
    assert log(cluster).values() == values


async def test_closing_does_not_wait_for_a_stopped_broker(cluster: FakeCluster) -> None:
    """More data is in flight to it than the sockets between can hold."""
    cluster.create_topic("t", partitions=10)
    producer = Producer(cluster.bootstrap, linger_ms=PIPELINED_MS, batch_bytes=1 << 20, max_in_flight=40)
    await producer.send("t", b"a", partition=0)
    for stream in cluster.nodes[1].streams():
        stream.connection.pause_reading()
    for number in range(40):
        producer.send("t", b"x" * 1_000_000, partition=number % 4 * 3)
        await asyncio.sleep(0.001)
    async with asyncio.timeout(10):
        await producer.close(flush=False)


async def test_a_node_that_is_cut_off_from_the_quorum_does_not_mislead(cluster: FakeCluster) -> None:
    """Its API continues to name the old leader."""
    async with Producer(cluster.nodes[1].api_address, linger_ms=PIPELINED_MS) as producer:
        assert (await producer.send_and_wait("t", b"a")).offset == 0
        old = cluster.nodes[1].describe(cluster.topics["t"])
        cluster.move_leader("t", 0, 2)
        describe = cluster.nodes[1].describe
        cluster.nodes[1].describe = lambda topic: old  # type: ignore[method-assign]
        async with asyncio.timeout(5):
            assert (await producer.send_and_wait("t", b"b")).offset == 1
        cluster.nodes[1].describe = describe  # type: ignore[method-assign]


async def test_a_node_restarts_at_another_address(cluster: FakeCluster) -> None:
    values = numbered(0, 200)
    async with Producer(cluster.bootstrap, linger_ms=PIPELINED_MS) as producer:
        await send_in_small_batches(producer, values[:100])
        await cluster.nodes[1].kill()
        sending = asyncio.create_task(send_in_small_batches(producer, values[100:]))
        await asyncio.sleep(0.05)
        await cluster.nodes[1].start()
        await sending
    assert log(cluster).values() == values


async def test_an_orderly_stop_of_a_broker_answers_its_requests(cluster: FakeCluster) -> None:
    held = asyncio.Event()
    cluster.nodes[1].on_produce = lambda _: Fate(hold=held)
    async with Producer(cluster.bootstrap, linger_ms=PIPELINED_MS) as producer:
        first = producer.send("t", b"a")
        await cluster.until(lambda: cluster.nodes[1].produces)
        closing = asyncio.create_task(cluster.nodes[1].stop_gracefully())
        await asyncio.sleep(0.05)
        cluster.move_leader("t", 0, 2)
        held.set()
        assert (await first).base_offset == 0
        assert (await producer.send_and_wait("t", b"b")).offset == 1
        await closing
    assert len(cluster.nodes[1].produces) == 1


async def test_a_topic_is_deleted_and_created_again(cluster: FakeCluster) -> None:
    async with Producer(cluster.bootstrap, linger_ms=PIPELINED_MS) as producer:
        for value in numbered(0, 20):
            await producer.send("t", value)
        cluster.create_topic("t")
        for value in numbered(20, 40):
            await producer.send("t", value)
    assert log(cluster).values() == numbered(20, 40)


async def test_a_permanently_failed_batch_does_not_stop_later_ones(cluster: FakeCluster) -> None:
    cluster.nodes[1].on_produce = nth(2, Fate(error="timestamp_out_of_range"))
    values = numbered(0, 300)
    producer = Producer(cluster.bootstrap, linger_ms=PIPELINED_MS)
    await send_in_small_batches(producer, values)
    with pytest.raises(Exception, match="timestamp_out_of_range"):
        await producer.flush()
    await producer.close()
    found = log(cluster).values()
    missing = [value for value in values if value not in found]
    assert found == [value for value in values if value not in missing]
    assert 1 <= len(missing) <= 50 and len(set(found)) == len(found)
    assert {parse_header(batch).producer_id for batch in log(cluster).batches} == {1, 2}


async def test_a_leader_without_the_producers_state(cluster: FakeCluster) -> None:
    async with Producer(cluster.bootstrap, linger_ms=PIPELINED_MS) as producer:
        await producer.send("t", b"a")
        log(cluster).windows.clear()
        await producer.send("t", b"b")
    assert log(cluster).values() == [b"a", b"b"]


async def test_no_answer_within_the_delivery_timeout(cluster: FakeCluster) -> None:
    cluster.nodes[1].on_produce = lambda _: Fate(silent=True)
    producer = Producer(cluster.bootstrap, linger_ms=PIPELINED_MS, delivery_timeout_ms=200)
    with pytest.raises(RetriableError) as late:
        await producer.send("t", b"a")
    assert late.value.code == "outcome_unknown" and late.value.applied is Applied.UNKNOWN
    cluster.nodes[1].on_produce = lambda _: OK
    cluster.nodes[1].drop_connections()
    assert (await producer.send("t", b"b")).base_offset == 1
    await producer.close()
    assert log(cluster).values() == [b"a", b"b"]


async def test_no_leader_within_the_delivery_timeout(cluster: FakeCluster) -> None:
    cluster.move_leader("t", 0, -1)
    producer = Producer(cluster.bootstrap, linger_ms=PIPELINED_MS, delivery_timeout_ms=200)
    with pytest.raises(RetriableError) as late:
        await producer.send("t", b"a")
    assert late.value.code == "leader_not_available" and late.value.applied is Applied.NO
    cluster.move_leader("t", 0, 3)
    assert (await producer.send("t", b"b")).base_offset == 0
    await producer.close()


async def test_an_unreachable_cluster(held: HeldPort) -> None:
    producer = Producer(str(held), delivery_timeout_ms=300)
    deliveries = [producer.send("t", b"a"), producer.send("t", b"b", key=b"k")]
    for delivery in deliveries:
        with pytest.raises(RetriableError, match="cannot connect"):
            await delivery
    with pytest.raises(RetriableError):
        await producer.prepare("t")
    assert producer.buffered_bytes == 0
    await producer.close()


async def test_without_idempotence_an_unanswered_batch_may_be_duplicated(cluster: FakeCluster) -> None:
    cluster.nodes[1].on_produce = nth(1, Fate(drop_after=True))
    async with Producer(cluster.bootstrap, linger_ms=PIPELINED_MS, idempotent=False) as producer:
        for value in numbered(0, 3):
            await producer.send("t", value)
    assert log(cluster).values() == [b"0000000", b"0000001", b"0000001", b"0000002"]
    assert cluster.producer_ids == 0


@pytest.mark.parametrize("seed", range(4))
async def test_everything_fails_now_and_then(cluster: FakeCluster, seed: int) -> None:
    dice = random.Random(seed)
    cluster.create_topic("t", partitions=4)
    fates = [Fate(drop_before=True), Fate(drop_after=True), Fate(error="overloaded"), Fate(error="request_timed_out")]

    def misfortune(_: ProduceRequest) -> Fate:
        return dice.choice(fates) if dice.random() < 0.05 else OK

    async def moving() -> None:
        while True:
            await asyncio.sleep(dice.uniform(0.01, 0.1))
            cluster.move_leader("t", dice.randrange(4), dice.choice([1, 2, 3]))

    for node in cluster.nodes.values():
        node.on_produce = misfortune
    mover = asyncio.create_task(moving())
    sent: dict[int, list[bytes]] = {partition: [] for partition in range(4)}
    async with Producer(cluster.bootstrap, linger_ms=1) as producer:
        for number in range(2000):
            partition, value = dice.randrange(4), b"%d" % number
            sent[partition].append(value)
            producer.send("t", value, partition=partition)
            if number % 20 == 0:
                await asyncio.sleep(0.001)
        await producer.flush()
        mover.cancel()
    for partition, values in sent.items():
        assert log(cluster, partition).values() == values
