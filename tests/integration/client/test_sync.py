"""The blocking client against real processes: order, guarantees and errors of the asyncio client, without a loop."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import threading
from collections.abc import Iterator

import pytest

from raftlog.cli.nodes.local_cluster import LocalCluster
from raftlog.errors import ClientClosed, InvalidRequest, RaftlogError
from raftlog.sync import Admin, Consumer, Producer, SentRecord
from tests.support.clusters.cluster import PATIENCE_S, running_cluster

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with running_cluster(node_count=1) as running:
        yield running


@pytest.fixture
def topic(cluster: LocalCluster, request: pytest.FixtureRequest) -> str:
    name = request.node.name.removeprefix("test_")[:200]
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic(name, partitions=2)
    return str(name)


def client_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("raftlog-")]


def test_records_keep_the_order_of_the_calls(cluster: LocalCluster, topic: str) -> None:
    """S1, across both ways to send and a flush in between."""
    with Producer(cluster.bootstrap, linger_ms=1) as producer:
        first = [producer.send(topic, b"a%d" % number, partition=0) for number in range(3000)]
        producer.send_many(topic, [b"b%d" % number for number in range(3000)], partition=0)
        producer.flush()
        last = producer.send(topic, b"c", key=b"key", partition=0, timestamp_ms=5, headers={"h": b"1"})
        assert [sent.result(PATIENCE_S).offset for sent in first] == list(range(3000))
        placed = last.result()
        assert (placed.topic, placed.partition, placed.offset, placed.timestamp_ms) == (topic, 0, 6000, 5)
        assert producer.buffered_bytes == 0
    with Consumer(cluster.bootstrap, topic, [0]) as consumer:
        read = [record.value for record in itertools.islice(consumer, 6001)]
    assert read == [b"%s%d" % (kind, number) for kind in (b"a", b"b") for number in range(3000)] + [b"c"]


def test_many_threads_can_send(cluster: LocalCluster, topic: str) -> None:
    sent: dict[int, list[SentRecord]] = {}
    with Producer(cluster.bootstrap) as producer:

        def send(number: int) -> None:
            sent[number] = [producer.send(topic, b"%d-%d" % (number, one), partition=1) for one in range(1000)]

        threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        offsets = {number: [one.result().offset for one in records] for number, records in sent.items()}
    assert sorted(itertools.chain(*offsets.values())) == list(range(4000))
    assert all(own == sorted(own) for own in offsets.values())


def test_sends_beyond_the_buffer_wait_for_room(cluster: LocalCluster, topic: str) -> None:
    values = [b"%07d" % number + b"x" * 20_000 for number in range(1000)]  # several times both bounds
    with Producer(cluster.bootstrap, buffer_bytes=2 * 1024 * 1024, batch_bytes=64 * 1024) as producer:
        sent = [producer.send(topic, value, partition=0) for value in values]
        assert [one.result().offset for one in sent] == list(range(1000))


def test_an_error_of_a_record_is_reported_once(cluster: LocalCluster, topic: str) -> None:
    with Producer(cluster.bootstrap) as producer:
        producer.prepare(topic)
        bad, unseen = producer.send(topic, b"x", partition=7), producer.send(topic, b"x", partition=8)
        good = producer.send(topic, b"y", partition=0)
        with pytest.raises(InvalidRequest, match="partition"):
            bad.result()
        assert good.result().offset == 0
        with pytest.raises(InvalidRequest, match="8"):
            producer.flush()  # of those two, the one that was not read
        producer.flush()
        with pytest.raises(InvalidRequest, match="8"):
            unseen.result()
        producer.send(topic, "text", partition=0)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="bytes"):
            producer.flush()
        producer.flush()
        with pytest.raises(InvalidRequest, match="partition"):
            producer.send_many(topic, [b"z"], partition=9)
    with pytest.raises(InvalidRequest):
        Producer(cluster.bootstrap, acks=5)


def test_reading_in_different_ways_skips_and_repeats_nothing(cluster: LocalCluster, topic: str) -> None:
    with Producer(cluster.bootstrap, batch_bytes=1024) as producer:
        producer.send_many(topic, [b"%d" % number for number in range(2000)], partition=0)
    read: list[bytes | None] = []
    with Consumer(cluster.bootstrap, topic, [0]) as consumer:
        read += [next(iter(consumer)).value for _ in range(3)]
        assert consumer.positions == {0: 3}
        assert consumer.lag == {0: 1997} and consumer.high_watermarks == {0: 2000}
        read += [record.value for record in consumer.poll(2)]
        batch = consumer.next_batch()
        assert batch is not None and batch.start_offset == 5
        read += batch.values()
        read += next(consumer.batches()).values()
        while len(read) < 2000:
            read += [record.value for record in consumer.poll(100)]
        assert read == [b"%d" % number for number in range(2000)]
        assert consumer.poll(timeout=0.01) == []
        consumer.seek(0, 1990)
        assert [record.offset for record in itertools.islice(consumer, 2)] == [1990, 1991]
        consumer.seek(0, "earliest")
        assert next(consumer).offset == 0  # prefetched records are dropped
    with pytest.raises(InvalidRequest, match="not-there"), Consumer(cluster.bootstrap, "not-there"):
        pass


def test_after_close_every_call_says_so(cluster: LocalCluster, topic: str) -> None:
    with Producer(cluster.bootstrap) as producer, Consumer(cluster.bootstrap, topic) as consumer:
        waiting = threading.Thread(target=lambda: consumer.poll(timeout=PATIENCE_S))
        sent = producer.send(topic, b"x")
    producer.close()
    consumer.close()
    for call in (lambda: producer.send(topic, b"y"), producer.flush, consumer.poll, sent.result):
        with pytest.raises(ClientClosed, match="shutting_down"):
            call()
    assert not waiting.is_alive()


def test_a_waiting_call_is_ended_by_close(cluster: LocalCluster, topic: str) -> None:
    consumer = Consumer(cluster.bootstrap, topic)
    consumer.start()
    told: list[RaftlogError] = []
    waits = threading.Event()

    def wait() -> None:
        waits.set()
        try:
            consumer.poll(timeout=PATIENCE_S)
        except RaftlogError as error:
            told.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    waits.wait(PATIENCE_S)
    consumer.close()
    waiting.join(PATIENCE_S)
    assert [error.code for error in told] == ["shutting_down"]


def test_a_timeout_ends_the_waiting_and_nothing_else(cluster: LocalCluster, topic: str) -> None:
    with Producer(cluster.bootstrap, linger_ms=60_000) as producer:
        producer.prepare(topic)
        sent = producer.send(topic, b"x", partition=0)
        with pytest.raises(TimeoutError):
            sent.result(0.05)
        producer.flush(PATIENCE_S)
        assert sent.result().offset == 0


def test_a_dropped_client_releases_its_thread(cluster: LocalCluster) -> None:
    admin = Admin(cluster.bootstrap)
    assert "raftlog-admin" in client_threads()
    assert admin.health().ready
    admin.close()
    Admin(cluster.bootstrap)
    gc.collect()
    assert "raftlog-admin" not in client_threads()


def test_a_fork_is_distinguished_from_the_process_that_created_it(cluster: LocalCluster) -> None:
    with Admin(cluster.bootstrap) as admin:
        context = multiprocessing.get_context("fork")
        answers = context.SimpleQueue()

        def in_child() -> None:
            try:
                admin.health()
            except RuntimeError as error:
                answers.put(str(error))

        child = context.Process(target=in_child)
        child.start()
        child.join(PATIENCE_S)
        assert "before a fork" in answers.get()


def test_its_own_thread_may_not_wait_for_itself(cluster: LocalCluster) -> None:
    with Admin(cluster.bootstrap) as admin:

        def partitions() -> Iterator[tuple[str, int]]:
            admin.health()  # the admin's thread takes the partitions
            yield "t", 0

        with pytest.raises(RuntimeError, match="its own thread"):
            admin.elect_leaders(partitions())
