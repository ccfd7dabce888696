"""Transactions of the client: answers that are lost, fences, refusals, and writers that commit together (S13)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from raftlog import Producer, commit_together
from raftlog.client import ConsumedOffsets, ConsumedRange, Transaction, TransactionState
from raftlog.client.transactions import manager as transaction_manager
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError
from tests.support.client.fake_cluster import FakeCluster, Fate
from tests.support.client.fake_transactions import seen


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as started:
        yield started


async def refused(transaction: Transaction, **options: Any) -> RaftlogError:
    with pytest.raises(RaftlogError) as caught:
        await transaction.commit(**options)
    return caught.value


# --- Answers that are lost -------------------------------------------------------------------------------------------


async def test_a_commit_whose_answer_was_lost_is_asked_for_until_it_is_known(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t")
    cluster.transactions.lose_answers = {"commit": 3, "initialize": 1}
    async with Producer(cluster.bootstrap, transactional_id="p") as producer:
        async with producer.transaction() as transaction:
            transaction.send("t", b"once")
        async with producer.transaction() as transaction:
            transaction.send("t", b"twice")
    assert seen(topic) == [b"once", b"twice"]
    assert len(cluster.transactions.asked("commit")) == 5


async def test_an_unknown_outcome_is_told_and_may_be_asked_for_again(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t")
    cluster.transactions.lose_answers = {"commit": 1000}
    async with Producer(cluster.bootstrap, transactional_id="p") as producer:
        transaction = producer.transaction()
        async with transaction:
            transaction.send("t", b"once")
            error = await refused(transaction, timeout=0.3)
            assert (type(error), error.code) == (RetriableError, "outcome_unknown")
            assert transaction.state.value == "unknown"
        with pytest.raises(RetriableError, match="the outcome of the previous transaction"):
            await producer.transaction().__aenter__()
        cluster.transactions.lose_answers = {}
        await transaction.commit()
        assert transaction.state is TransactionState.COMMITTED
        async with producer.transaction() as transaction:
            transaction.send("t", b"twice")
    assert seen(topic) == [b"once", b"twice"]


async def test_a_lost_abort_is_made_up_for_when_the_next_one_begins(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = cluster.create_topic("t")
    monkeypatch.setattr(transaction_manager, "ABORT_TIMEOUT", 0.2)
    async with Producer(cluster.bootstrap, transactional_id="p") as producer:
        cluster.transactions.lose_answers = {"abort": 1000}
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction() as transaction:
                await transaction.send_and_wait("t", b"gone")
                raise ZeroDivisionError
        assert transaction.state is TransactionState.ABORTED
        async with producer.transaction() as transaction:
            transaction.send("t", b"there")
    assert seen(topic) == [b"there"]
    first, again = cluster.transactions.asked("initialize")
    assert first.after is None and again.after.producer_epoch == 0


async def test_a_commit_that_is_under_way_goes_on_when_its_task_is_cancelled(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t")
    asked, answer = asyncio.Event(), asyncio.Event()

    def hold(what: str) -> Any:
        if what != "commit":
            return None
        asked.set()
        return answer.wait()

    cluster.transactions.before_answer = hold
    async with Producer(cluster.bootstrap, transactional_id="p") as producer:
        transaction = producer.transaction()

        async def work() -> None:
            async with transaction:
                transaction.send("t", b"there")

        task = asyncio.create_task(work())
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        answer.set()
        async with producer.transaction() as after:
            after.send("t", b"next")
        assert transaction.state is TransactionState.COMMITTED
    assert seen(topic) == [b"there", b"next"]


async def test_a_key_is_never_used_again_also_where_no_other_is_told(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t")
    cluster.transactions.tells_next_keys = False
    async with Producer(cluster.bootstrap, transactional_id="p", linger_ms=0) as producer:
        async with producer.transaction() as transaction:
            transaction.send("t", b"a")
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction() as transaction:
                await transaction.send_and_wait("t", b"never")
                raise ZeroDivisionError
        async with producer.transaction() as transaction:
            transaction.send("t", b"b")
    assert seen(topic) == [b"a", b"b"]
    assert len(cluster.transactions.asked("initialize")) == 3


# --- Fences and refusals ---------------------------------------------------------------------------------------------


async def test_a_producer_that_was_replaced_is_fenced_for_good(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t")
    async with (
        Producer(cluster.bootstrap, transactional_id="p") as zombie,
        Producer(cluster.bootstrap, transactional_id="p") as successor,
    ):
        transaction = zombie.transaction()
        with pytest.raises(InvalidRequest) as caught:
            async with transaction:
                await transaction.send_and_wait("t", b"zombie")
                async with successor.transaction() as other:
                    other.send("t", b"successor")
        assert caught.value.code == "producer_fenced"
        assert transaction.state is TransactionState.UNKNOWN
        with pytest.raises(InvalidRequest) as caught:
            await zombie.transaction().__aenter__()
        assert caught.value.code == "producer_fenced"
        async with successor.transaction() as other:
            other.send("t", b"goes on")
    assert seen(topic) == [b"successor", b"goes on"]
    assert len(cluster.transactions.asked("initialize")) == 2


async def test_a_refused_commit_is_aborted_and_the_producer_goes_on(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t")
    async with Producer(cluster.bootstrap, transactional_id="p") as producer:
        for expected in (None, "position_taken"):
            transaction = producer.transaction()
            async with transaction:
                transaction.send("t", b"published")
                transaction.set_position("x", -1, 7)
                if expected is not None:
                    assert (await refused(transaction)).code == expected
                    assert transaction.state is TransactionState.ABORTED
        async with producer.transaction() as transaction:
            transaction.send("t", b"after")
            transaction.set_position("x", 7, 8)
    assert seen(topic) == [b"published", b"after"]
    assert cluster.transactions.positions == {"x": 8}


async def test_offsets_move_with_it_or_not_at_all_s13(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t")
    place = ("g", topic.id.hex(), 0)

    def consumed(start: int, end: int) -> ConsumedOffsets:
        return ConsumedOffsets("g", (ConsumedRange(topic.id.hex(), 0, start, end),))

    async with Producer(cluster.bootstrap, transactional_id="p") as producer:
        async with producer.transaction() as transaction:
            transaction.send("t", b"a")
            transaction.send_offsets(consumed(-1, 3))
            transaction.send_offsets(consumed(3, 5))
        assert cluster.transactions.group_offsets == {place: 5}
        transaction = producer.transaction()
        async with transaction:
            transaction.send("t", b"b")
            transaction.send_offsets(consumed(3, 9))
            assert (await refused(transaction)).code == "offset_moved"
        async with producer.transaction() as transaction:
            transaction.send_offsets(consumed(5, 6))
    assert cluster.transactions.group_offsets == {place: 6}
    assert seen(topic) == [b"a"]
    # The one that wrote nothing is named too: that is what fences a zombie.
    assert [len(one.outputs) for one in cluster.transactions.asked("commit")] == [1, 1, 1]


async def test_who_is_cancelled_hears_of_that_also_where_the_abort_finds_a_fence(cluster: FakeCluster) -> None:
    cluster.create_topic("t")
    cluster.nodes[1].on_produce = lambda _: Fate(silent=True)
    async with Producer(cluster.bootstrap, transactional_id="p", linger_ms=0) as producer:
        transaction = producer.transaction()

        async def work() -> None:
            async with transaction:
                transaction.send("t", b"never answered")

        task = asyncio.create_task(work())
        await cluster.until(lambda: cluster.nodes[1].produces)
        await asyncio.sleep(0)
        cluster.transactions.refuse = {"abort": "producer_fenced"}
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert transaction.state is TransactionState.ABORTED
        with pytest.raises(InvalidRequest) as caught:
            await producer.transaction().__aenter__()
        assert caught.value.code == "producer_fenced"
        cluster.nodes[1].on_produce = lambda _: Fate()


# --- Together --------------------------------------------------------------------------------------------------------


async def test_several_writers_commit_together_or_not_at_all_s13(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t")
    async with (
        Producer(cluster.bootstrap, transactional_id="p") as named,
        Producer(cluster.bootstrap) as unnamed,
        Producer(cluster.bootstrap) as elsewhere,
    ):
        async with elsewhere.transaction() as away:
            away.send("t", b"away")
            output = await away.prepare()
        async with named.transaction() as one, unnamed.transaction() as other:
            one.send("t", b"one")
            other.send("t", b"other")
            await commit_together([one, other, output], positions={"x": (-1, 0)})
        assert sorted(value or b"" for value in seen(topic)) == [b"away", b"one", b"other"]
        assert cluster.transactions.positions == {"x": 0}
        async with named.transaction() as one, unnamed.transaction() as other:
            one.send("t", b"never")
            other.send("t", b"never")
            with pytest.raises(InvalidRequest, match="position_taken"):
                await commit_together([one, other], positions={"x": (-1, 0)})
            assert (one.state, other.state) == (TransactionState.ABORTED, TransactionState.ABORTED)
    assert len(seen(topic)) == 3


async def test_of_writers_that_commit_together_one_that_failed_aborts_all(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t")
    async with (
        Producer(cluster.bootstrap) as a,
        Producer(cluster.bootstrap, linger_ms=0) as b,
        a.transaction() as one,
        b.transaction() as other,
    ):
        await one.send_and_wait("t", b"fine")
        cluster.nodes[1].on_produce = lambda _: Fate(error="timestamp_out_of_range")
        other.send("t", b"refused")
        with pytest.raises(InvalidRequest, match="timestamp_out_of_range"):
            await commit_together([one, other])
        assert (one.state, other.state) == (TransactionState.ABORTED, TransactionState.ABORTED)
    assert seen(topic) == [] and cluster.transactions.asked("commit") == []


async def test_outputs_of_other_processes_need_addresses_only(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t")
    async with Producer(cluster.bootstrap) as producer, producer.transaction() as transaction:
        transaction.send("t", b"a")
        output = await transaction.prepare()
        with pytest.raises(InvalidRequest):
            transaction.send("t", b"more")
    await commit_together([output], bootstrap=cluster.bootstrap)
    assert seen(topic) == [b"a"]
