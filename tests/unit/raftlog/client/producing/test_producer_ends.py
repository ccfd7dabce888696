"""The producer at its ends.

Deliveries complete once whatever happens, one bad record affects no other, memory stays bounded, and an error says
correctly whether the record may be in the log.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa
import pytest

from raftlog import Producer
from raftlog.client.producing import requests as lanes
from raftlog.client.producing import sender
from raftlog.client.producing.delivery import DeliveryFuture
from raftlog.client.producing.sender import Sender
from raftlog.client.settings import ProducerSettings
from raftlog.errors import Applied, ClientClosed, InvalidRequest, RaftlogError, RetriableError
from tests.support.client.fake_cluster import FakeCluster, FakePartition, Fate
from tests.support.client.parts import senders
from tests.support.http.api_client import eventually

__all__ = ["senders"]


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as started:
        yield started


# --- Outcomes --------------------------------------------------------------------------------------------------------


async def test_a_batch_in_flight_to_a_deleted_topic_has_an_unknown_outcome(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "UNKNOWN_TOPIC_GRACE", 0.05)
    monkeypatch.setattr(sender, "METADATA_INTERVAL", 0.05)
    cluster.create_topic("t")
    cluster.nodes[1].on_produce = lambda _: Fate(silent=True)
    producer = Producer(cluster.bootstrap, linger_ms=0)
    in_flight = producer.send("t", b"a")
    await cluster.until(lambda: cluster.nodes[1].produces)
    del cluster.topics["t"]
    with pytest.raises(RetriableError) as error:
        async with asyncio.timeout(5):
            await in_flight
    assert (error.value.code, error.value.applied) == ("outcome_unknown", Applied.UNKNOWN)
    await producer.close()


async def test_one_invalid_answer_of_the_api_fails_nothing(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "METADATA_INTERVAL", 0.05)
    cluster.create_topic("t")
    node = cluster.nodes[1]
    held = asyncio.Event()
    node.on_produce = lambda _: Fate(hold=held)
    async with Producer(cluster.bootstrap, linger_ms=0) as producer:
        in_flight = producer.send("t", b"a")
        await cluster.until(lambda: node.produces)
        describe = node.describe
        node.describe = lambda _: {"nonsense": True}  # type: ignore[method-assign]
        called = len(node.api_calls)
        await cluster.until(lambda: len(node.api_calls) >= called + 6)
        assert not in_flight.done()
        node.describe = describe  # type: ignore[method-assign]
        held.set()
        assert (await in_flight).base_offset == 0


# --- One bad record --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [{"timestamp_ms": 1.5}, {"timestamp_ms": "7"}, {"partition": 0.0}, {"partition": "0"}],
    ids=str,
)
async def test_invalid_numbers_are_refused_before_they_reach_a_batch(
    cluster: FakeCluster, arguments: dict[str, Any]
) -> None:
    topic = cluster.create_topic("t")
    async with Producer(cluster.bootstrap) as producer:
        for _ in range(2):
            with pytest.raises(TypeError):
                producer.send("t", b"bad", **arguments)
            await producer.prepare("t")
        producer.send("t", b"good")
    assert topic.partitions[0].values() == [b"good"]


@pytest.mark.parametrize("times", [[1, 1.5], [1, "2"], [1, -5], [1, 2**63], pa.array([1, -5])], ids=str)
async def test_columns_of_times_are_checked_before_anything_is_queued(cluster: FakeCluster, times: Any) -> None:
    topic = cluster.create_topic("t")
    async with Producer(cluster.bootstrap) as producer:
        with pytest.raises((TypeError, InvalidRequest)):
            await producer.send_many("t", [b"bad", b"bad"], timestamps=times)
        assert producer.buffered_bytes == 0
        await producer.send_many("t", [b"good"], timestamps=[5])
    assert topic.partitions[0].values() == [b"good"]


@pytest.mark.parametrize("codec", ["none", "zstd"])
async def test_a_batch_that_cannot_be_encoded_affects_no_other(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    topic = cluster.create_topic("t", partitions=3)
    real = lanes.encode

    def encode(values: Any, **more: Any) -> bytes:
        if b"bad" in values:
            raise RuntimeError("a bug")
        return real(values, **more)

    monkeypatch.setattr(lanes, "encode", encode)
    monkeypatch.setattr(lanes, "INLINE_COMPRESSION_BYTES", 0)
    async with Producer(cluster.bootstrap, linger_ms=5, compression=codec, delivery_timeout_ms=3000) as producer:
        await producer.prepare("t")
        sent = [producer.send("t", value, partition=p) for p, value in enumerate([b"a", b"bad", b"c"])]
        with pytest.raises(RaftlogError, match="a bug") as error:
            await sent[1]
        assert error.value.applied is Applied.NO
        assert [(await sent[p]).base_offset for p in (0, 2)] == [0, 0]
        assert (await producer.send("t", b"after", partition=1)).base_offset == 0
    assert [partition.values() for partition in topic.partitions] == [[b"a"], [b"after"], [b"c"]]


async def test_a_callback_that_raises_affects_no_other(cluster: FakeCluster) -> None:
    cluster.create_topic("t", partitions=2)
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    async with Producer(cluster.bootstrap, delivery_timeout_ms=2000) as producer:
        deliveries = [producer.send("t", b"x", partition=p) for p in (0, 1)]

        def broken(_: DeliveryFuture) -> None:
            raise KeyError("the user's")

        for delivery in deliveries:
            delivery.add_done_callback(broken)
        assert [(await delivery).base_offset for delivery in deliveries] == [0, 0]
    assert [str(context["exception"]) for context in told] == ['"the user\'s"'] * 2


# --- Waiting and closing ---------------------------------------------------------------------------------------------


async def test_a_flush_does_not_wait_for_linger_if_the_topic_had_to_be_looked_up_first(cluster: FakeCluster) -> None:
    cluster.create_topic("t")
    producer = Producer(cluster.bootstrap, linger_ms=30_000)
    keyed = producer.send("t", b"a", key=b"k")
    async with asyncio.timeout(5):
        await producer.flush()
    assert keyed.result().base_offset == 0
    await producer.close()


async def test_a_cancelled_close_completes_every_delivery(cluster: FakeCluster) -> None:
    cluster.create_topic("t")
    cluster.nodes[1].on_produce = lambda _: Fate(silent=True)
    producer = Producer(cluster.bootstrap, linger_ms=0)
    sent = [producer.send("t", b"a")]
    await cluster.until(lambda: cluster.nodes[1].produces)
    sent += [producer.send("t", b"b"), producer.send("unknown", b"c", key=b"k")]
    closing = asyncio.create_task(producer.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert all(delivery.done() for delivery in sent)
    assert producer.buffered_bytes == 0
    await cluster.until(lambda: not cluster.nodes[1].streams())


async def test_closing_ends_a_send_many_that_waits_for_room(cluster: FakeCluster) -> None:
    cluster.create_topic("t")
    cluster.nodes[1].on_produce = lambda _: Fate(silent=True)
    producer = Producer(cluster.bootstrap, buffer_bytes=2 << 20, linger_ms=0)
    waiting = asyncio.create_task(producer.send_many("t", [b"x" * 1000] * 10_000))
    await cluster.until(lambda: cluster.nodes[1].produces)
    await producer.close(flush=False)
    with pytest.raises(ClientClosed, match="shutting_down"):
        await waiting
    assert producer.buffered_bytes == 0


async def test_without_acknowledgements_a_slow_broker_causes_backpressure(cluster: FakeCluster) -> None:
    """Records that it does not accept stay in the buffer, which is bounded, and nowhere else."""
    topic = cluster.create_topic("t")
    value = b"x" * 100_000
    async with Producer(cluster.bootstrap, acks=0, buffer_bytes=4 << 20, linger_ms=0) as producer:
        await producer.send("t", value)
        await cluster.until(lambda: topic.partitions[0].end_offset == 1)
        (stream,) = cluster.nodes[1].streams()
        stream.connection.pause_reading()
        sent = 1
        with pytest.raises(RetriableError, match="overloaded"):
            for _ in range(1000):
                producer.send("t", value)
                sent += 1
                await asyncio.sleep(0)
        assert sent < 400
        stream.connection.resume_reading()
    await cluster.until(lambda: topic.partitions[0].end_offset == sent)


@pytest.mark.parametrize("arrow", [False, True], ids=["lists", "arrow"])
async def test_long_columns_are_processed_piece_by_piece(cluster: FakeCluster, arrow: bool) -> None:
    topic = cluster.create_topic("t")
    values: Any = [b"%d" % i for i in range(100_000)]
    times: Any = list(range(100_000))
    columns = (pa.array(values), pa.array(values), pa.array(times)) if arrow else (values, values, times)
    async with Producer(cluster.bootstrap) as producer:
        await producer.prepare("t")
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        other = asyncio.create_task(others())
        await producer.send_many("t", columns[0], keys=columns[1], timestamps=columns[2])
        other.cancel()
        assert turns > 4 * 100_000 // 8192
    assert topic.partitions[0].values() == values


# --- Changes of the topic --------------------------------------------------------------------------------------------


async def test_a_limit_that_was_lowered_is_learned_from_a_refusal(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t")
    producer = Producer(cluster.bootstrap, linger_ms=0)
    await producer.prepare("t")
    topic.configs["max.message.bytes"] = "5000"
    with pytest.raises(InvalidRequest, match="batch_too_large"):
        await producer.send("t", b"x" * 9000)
    async with asyncio.timeout(5):
        with pytest.raises(InvalidRequest, match="the batch limit of topic t"):
            while True:
                sent = producer.send("t", b"x" * 9000)  # refused here as soon as the limit is known
                with pytest.raises(InvalidRequest, match="from the fake"):
                    await sent
    await producer.close()


async def test_added_partitions_are_noticed(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "METADATA_INTERVAL", 0.05)
    topic = cluster.create_topic("t")
    async with Producer(cluster.bootstrap, linger_ms=0) as producer:
        await producer.send("t", b"x")
        topic.partitions.append(FakePartition(1, leader=1))
        async with asyncio.timeout(10):
            while (await producer.send("t", b"x")).partition != 1:
                pass


async def test_a_batch_that_was_never_sent_has_no_unknown_outcome(cluster: FakeCluster) -> None:
    """A connection that is gone when a request is ready has sent none of it."""

    class Owner:
        def __init__(self) -> None:
            self.told: list[str] = []

        def answered(self, answers: Any) -> None:
            self.told += [answer.error for _, answer in answers]

        def lost(self, attempts: Any, error: RaftlogError) -> None:
            self.told.append("lost")

    class Gone:
        def request(self, *_: Any, **__: Any) -> None:
            raise RetriableError("connection_lost", "it is closed")

    owner = Owner()
    lane = lanes.ProduceRequests(
        {},
        ProducerSettings(),
        False,
        answered=owner.answered,
        lost=owner.lost,
    )
    batch: Any = sender.Accumulator(
        batch_bytes=2000, max_batch_bytes=2000, buffer_bytes=4000, linger=0, new_delivery=DeliveryFuture
    ).append("t", b"x", None, 0, None, None, 0.0, 1)
    lane.send(Gone(), [batch])  # type: ignore[arg-type]
    assert (owner.told, lane.requests) == (["connection_lost"], 0)


@pytest.mark.parametrize(("size", "threads"), [(lanes.INLINE_COMPRESSION_BYTES // 2, 0), (100_000, 1)])
async def test_only_large_batches_are_compressed_on_a_thread(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, size: int, threads: int
) -> None:
    cluster.create_topic("t")
    loop, given = asyncio.get_running_loop(), list[Any]()
    run_in_executor = loop.run_in_executor

    def counted(pool: Any, work: Any, *arguments: Any) -> Any:
        given.append(work)
        return run_in_executor(pool, work, *arguments)

    async with Producer(cluster.bootstrap, linger_ms=0, compression="gzip") as producer:
        await producer.prepare("t")
        monkeypatch.setattr(loop, "run_in_executor", counted)
        assert (await producer.send("t", bytes(size))).base_offset == 0
        assert len(given) == threads


async def test_without_a_thread_the_loop_compresses(
    cluster: FakeCluster, senders: list[Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches that wait for a thread that could not be started would hold up their broker's batches forever."""

    def none_left(*_: Any) -> Any:
        raise RuntimeError("can't start new thread")

    cluster.create_topic("t")
    async with Producer(cluster.bootstrap, linger_ms=0, compression="gzip") as producer:
        await producer.prepare("t")
        with monkeypatch.context() as patch:
            patch.setattr(asyncio.get_running_loop(), "run_in_executor", none_left)
            async with asyncio.timeout(5):
                done = await producer.send("t", bytes(100_000))
        assert done.base_offset == 0
        async with asyncio.timeout(5):
            assert (await producer.send("t", b"b")).base_offset == 1
        (inner,) = senders
        assert inner.facts().requests == 0


@pytest.mark.parametrize(
    "shortage",
    [MemoryError(), OSError(errno.EMFILE, "Too many open files"), ImportError("libarrow.so: Too many open files")],
    ids=repr,
)
async def test_records_that_cannot_be_encoded_for_lack_of_memory_or_descriptors_are_sent_later(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, shortage: Exception
) -> None:
    cluster.create_topic("t")
    attempts: list[int] = []
    encode = lanes.encode

    def short_at_first(*columns: Any, **options: Any) -> bytes:
        attempts.append(1)
        if len(attempts) < 3:
            raise shortage
        return encode(*columns, **options)

    monkeypatch.setattr(lanes, "encode", short_at_first)
    async with Producer(cluster.bootstrap, linger_ms=0) as producer, asyncio.timeout(5):
        assert (await producer.send("t", b"a")).base_offset == 0
    assert len(attempts) == 3


async def test_deadlines_are_kept_after_a_turn_that_failed(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create_topic("t")
    cluster.nodes[1].on_produce = lambda _: Fate(silent=True)
    producer = Producer(cluster.bootstrap, linger_ms=0, delivery_timeout_ms=500)
    failed: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
    in_flight = producer.send("t", b"a")
    await cluster.until(lambda: cluster.nodes[1].produces)

    def pump(broken: Sender) -> None:
        raise RuntimeError("a bug of ours")

    with monkeypatch.context() as patch:
        patch.setattr(Sender, "pump", pump)
        await eventually(lambda: bool(failed))
    assert str(failed[0]["exception"]) == "a bug of ours" and not in_flight.done()
    with pytest.raises(RetriableError) as error:
        async with asyncio.timeout(5):
            await in_flight
    assert error.value.code == "outcome_unknown"
    await producer.close()
