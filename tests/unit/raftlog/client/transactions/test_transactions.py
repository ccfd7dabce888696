"""Transactions of the client against a cluster in memory: commits, aborts and unknown outcomes (S13)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from raftlog import Producer
from raftlog.client import TransactionState
from raftlog.client.producing import sender
from raftlog.errors import InvalidRequest, RaftlogError
from raftlog.model import TopicId
from raftlog.records.batch import parse_header
from raftlog.wire import TopicEnds
from tests.support.client.fake_cluster import FakeCluster, FakeTopic, Fate
from tests.support.client.fake_transactions import seen


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as started:
        yield started


def keys_of(topic: FakeTopic) -> list[tuple[int, int, int]]:
    """Return producer id, epoch and base sequence of every batch of records."""
    headers = [parse_header(batch) for partition in topic.partitions for batch in partition.batches]
    return [(h.producer_id, h.producer_epoch, h.base_sequence) for h in headers if not h.is_control]


# --- Committed, and aborted ------------------------------------------------------------------------------------------


async def test_a_block_that_ends_commits_all_of_it_s13(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t", partitions=3)
    async with Producer(cluster.bootstrap, transactional_id="p") as producer:
        async with producer.transaction() as transaction:
            for number in range(30):
                transaction.send("t", b"%d" % number, partition=number % 3)
            await transaction.send_many("t", [b"many"] * 5, partition=1)
            assert seen(topic) == []
        assert transaction.state is TransactionState.COMMITTED
    assert len(seen(topic)) == 35
    headers = [parse_header(batch) for batch in topic.partitions[0].batches]
    assert [header.is_transactional for header in headers] == [True] * len(headers)
    (commit,) = cluster.transactions.asked("commit")
    assert commit.outputs[0].topics == (TopicEnds(TopicId(topic.id), (0, 1, 2), (10, 15, 10)),)


async def test_each_transaction_of_a_name_has_an_epoch_and_counts_from_zero(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t")
    async with Producer(cluster.bootstrap, transactional_id="p") as producer:
        for value in (b"a", b"b", b"c"):
            async with producer.transaction() as transaction:
                transaction.send("t", value)
    assert [(epoch, sequence) for _, epoch, sequence in keys_of(topic)] == [(0, 0), (1, 0), (2, 0)]
    assert len(cluster.transactions.asked("initialize")) == 1
    assert seen(topic) == [b"a", b"b", b"c"]


async def test_without_a_name_each_transaction_has_an_id_of_its_own_out_of_one_block(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t")
    async with Producer(cluster.bootstrap) as producer:
        await producer.send_and_wait("t", b"plain")
        for value in (b"a", b"b"):
            async with producer.transaction() as transaction:
                transaction.send("t", value)
    (first, *_), (second, *_) = keys_of(topic)[-2:]
    assert second == first + 1
    assert {epoch for _, epoch, _ in keys_of(topic)} == {0}
    assert len(cluster.transactions.asked("blocks")) == 1
    assert sorted(value or b"" for value in seen(topic)) == [b"a", b"b", b"plain"]


async def test_a_block_that_raises_aborts_and_the_next_transaction_goes_on_s13(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t")
    async with Producer(cluster.bootstrap, transactional_id="p", linger_ms=0) as producer:
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction() as transaction:
                await transaction.send_and_wait("t", b"gone")
                late = transaction.send("t", b"never sent")
                raise ZeroDivisionError
        assert transaction.state is TransactionState.ABORTED
        assert late.exception() is not None
        with pytest.raises(InvalidRequest, match="ZeroDivisionError"):
            transaction.send("t", b"more")
        async with producer.transaction() as transaction:
            transaction.send("t", b"there")
    assert seen(topic) == [b"there"]
    assert len(cluster.transactions.asked("abort")) == 1


async def test_a_cancelled_task_aborts(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t")
    async with Producer(cluster.bootstrap, transactional_id="p", linger_ms=0) as producer:
        sent = asyncio.Event()

        async def work() -> None:
            async with producer.transaction() as transaction:
                await transaction.send_and_wait("t", b"gone")
                sent.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await sent.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(cluster.transactions.asked("abort")) == 1
        async with producer.transaction() as transaction:
            transaction.send("t", b"there")
    assert seen(topic) == [b"there"]


async def test_a_transaction_without_anything_in_it_asks_nobody(cluster: FakeCluster) -> None:
    async with Producer(cluster.bootstrap, transactional_id="p") as producer:
        for _ in range(2):
            async with producer.transaction() as transaction:
                pass
            assert transaction.state is TransactionState.COMMITTED
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction():
                raise ZeroDivisionError
    assert [path for path, _ in cluster.transactions.requests] == ["initialize"]


# --- Refused commits -------------------------------------------------------------------------------------------------


async def test_a_record_that_failed_cannot_be_committed_s13(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t")
    cluster.create_topic("small", configs={"max.message.bytes": "1024"})
    cluster.nodes[1].on_produce = lambda _: (
        Fate(error="timestamp_out_of_range") if topic.partitions[0].batches else Fate()
    )
    async with Producer(cluster.bootstrap, transactional_id="p", linger_ms=0) as producer:
        with pytest.raises(InvalidRequest) as caught:
            async with producer.transaction() as transaction:
                await transaction.send_and_wait("t", b"fine")
                transaction.send("t", b"refused")
        assert caught.value.code == "transaction_aborted"
        assert "timestamp_out_of_range" in caught.value.detail
        assert isinstance(caught.value.__cause__, RaftlogError)
        assert transaction.state is TransactionState.ABORTED
        cluster.nodes[1].on_produce = lambda _: Fate()
        async with producer.transaction() as transaction:
            transaction.send("t", b"there")
    assert seen(topic) == [b"there"]
    assert len(cluster.transactions.asked("commit")) == 1


async def test_a_record_whose_fate_is_unknown_cannot_be_committed_s13(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t")
    cluster.nodes[1].on_produce = lambda _: Fate(silent=True)
    async with Producer(cluster.bootstrap, linger_ms=0, transaction_timeout_ms=300) as producer:
        with pytest.raises(InvalidRequest, match="outcome_unknown"):
            async with producer.transaction() as transaction:
                transaction.send("t", b"perhaps")
        assert transaction.state is TransactionState.ABORTED
    assert topic.partitions[0].values() == [b"perhaps"] and seen(topic) == []


async def test_a_leader_that_forgot_the_producer_breaks_the_transaction(cluster: FakeCluster) -> None:
    """Under a new name, as a plain producer would go on, its records would not be of this transaction."""
    topic = cluster.create_topic("t")
    async with Producer(cluster.bootstrap, transactional_id="p", linger_ms=0) as producer:
        with pytest.raises(InvalidRequest, match="lost the state"):
            async with producer.transaction() as transaction:
                await transaction.send_and_wait("t", b"one")
                topic.partitions[0].windows.clear()
                transaction.send("t", b"two")
        async with producer.transaction() as transaction:
            transaction.send("t", b"there")
    assert seen(topic) == [b"there"]


async def test_a_topic_that_was_made_anew_breaks_the_transaction(cluster: FakeCluster) -> None:
    cluster.create_topic("t")
    async with Producer(cluster.bootstrap, transactional_id="p", linger_ms=0) as producer:
        with pytest.raises(InvalidRequest, match="created again"):
            async with producer.transaction() as transaction:
                await transaction.send_and_wait("t", b"one")
                again = cluster.create_topic("t")
                transaction.send("t", b"two")
        async with producer.transaction() as transaction:
            transaction.send("t", b"there")
    assert seen(again) == [b"there"]


async def test_a_topic_of_an_earlier_transaction_that_is_gone_breaks_nothing(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "METADATA_INTERVAL", 0.01)
    monkeypatch.setattr(sender, "UNKNOWN_TOPIC_GRACE", 0.0)
    cluster.create_topic("old")
    topic = cluster.create_topic("t", partitions=2)
    node, held = cluster.nodes[1], asyncio.Event()
    asks_for_t = "GET /v1/topics/t"
    async with Producer(cluster.bootstrap, transactional_id="p", linger_ms=0) as producer:
        async with producer.transaction() as transaction:
            transaction.send("old", b"one")
        del cluster.topics["old"]
        node.api_calls.clear()
        async with producer.transaction() as transaction:
            node.on_produce = lambda _: Fate(hold=held)
            transaction.send("t", b"a", partition=0)
            await cluster.until(lambda: "GET /v1/topics/old" in node.api_calls)
            # It is forgotten once its refusal has arrived: then a refresh names only the other topic.
            await cluster.until(lambda: [one for one in node.api_calls if "/topics/" in one][-3:] == 3 * [asks_for_t])
            held.set()
            transaction.send("t", b"b", partition=1)
    assert seen(topic) == [b"a", b"b"]


async def test_whoever_goes_on_sending_after_a_failure_is_told_at_once(cluster: FakeCluster) -> None:
    cluster.create_topic("t")
    cluster.nodes[1].on_produce = lambda _: Fate(error="timestamp_out_of_range")
    async with Producer(cluster.bootstrap, linger_ms=0) as producer:
        with pytest.raises(InvalidRequest) as caught:
            async with producer.transaction() as transaction:
                delivery = transaction.send("t", b"refused")
                await delivery.settled()
                transaction.send("t", b"more")
        assert caught.value.code == "transaction_aborted"
        assert producer.buffered_bytes == 0


# --- Use -------------------------------------------------------------------------------------------------------------


async def test_what_is_refused_before_anything_happens(cluster: FakeCluster) -> None:
    for settings in (
        {"transactional_id": ""},
        {"transactional_id": "\n"},
        {"transactional_id": "p", "acks": 1},
        {"transactional_id": "p", "transaction_timeout_ms": 1},
    ):
        with pytest.raises(InvalidRequest):
            Producer(cluster.bootstrap, **settings)
    cluster.create_topic("t")
    async with Producer(cluster.bootstrap, transactional_id="p") as producer:
        with pytest.raises(InvalidRequest, match="sends only in transactions"):
            producer.send("t", b"plain")
        transaction = producer.transaction()
        with pytest.raises(InvalidRequest, match="not begun"):
            transaction.send("t", b"early")
        async with transaction:
            with pytest.raises(InvalidRequest, match="end it first"):
                await producer.transaction().__aenter__()
            with pytest.raises(InvalidRequest, match="begins only once"):
                await transaction.__aenter__()
            with pytest.raises(InvalidRequest, match="another process"):
                await transaction.prepare()
        with pytest.raises(InvalidRequest, match="committed"):
            transaction.send("t", b"late")
    async with Producer(cluster.bootstrap, acks=1) as producer:
        with pytest.raises(InvalidRequest, match="acks=all"):
            producer.transaction()


async def test_closing_a_producer_aborts_what_is_open(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t")
    producer = Producer(cluster.bootstrap, transactional_id="p", linger_ms=0)
    transaction = producer.transaction()
    await transaction.__aenter__()
    await transaction.send_and_wait("t", b"gone")
    await producer.close()
    assert transaction.state is TransactionState.ABORTED
    assert topic.partitions[0].open == {} and seen(topic) == []


async def test_send_many_that_waits_for_room_ends_with_the_transaction(cluster: FakeCluster) -> None:
    cluster.create_topic("t")
    cluster.nodes[1].on_produce = lambda _: Fate(silent=True)
    async with Producer(cluster.bootstrap, buffer_bytes=1 << 21, transactional_id="p") as producer:
        transaction = producer.transaction()
        await transaction.__aenter__()
        filling = asyncio.create_task(transaction.send_many("t", [bytes(1000)] * 10_000))
        await cluster.until(lambda: cluster.nodes[1].produces, 30.0)
        await transaction.abort()
        with pytest.raises(InvalidRequest, match="aborted it"):
            await filling
        cluster.nodes[1].on_produce = lambda _: Fate()
        async with producer.transaction() as transaction:
            transaction.send("t", b"there")
    assert seen(cluster.topics["t"]) == [b"there"]
