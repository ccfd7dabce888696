"""The outcomes that a client reports for a transaction: committed, aborted or unknown, and never a wrong one (S13)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from raftlog import Producer, commit_together
from raftlog.client import Transaction, TransactionState
from raftlog.client.transactions import manager as transaction_manager
from raftlog.client.transactions.decision import Wait
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError
from tests.support.client.fake_cluster import FakeCluster, Fate
from tests.support.client.fake_transactions import seen


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as started:
        yield started


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_manager, "ABORT_TIMEOUT", 0.2)
    monkeypatch.setattr(transaction_manager, "BEGIN_TIMEOUT", 0.3)


async def begin_in_vain(producer: Producer) -> RaftlogError:
    with pytest.raises(RaftlogError) as caught:
        await producer.transaction().__aenter__()
    return caught.value


async def commit_in_vain(transaction: Transaction) -> RaftlogError:
    with pytest.raises(RaftlogError) as caught:
        await transaction.commit(timeout=0.3)
    return caught.value


async def abort_in_vain(transaction: Transaction) -> RaftlogError:
    with pytest.raises(RaftlogError) as caught:
        await transaction.abort()
    return caught.value


# --- Aborts without an answer ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("impatient")
async def test_what_may_be_committed_is_not_aborted_because_nobody_answers_s13(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t")
    cluster.transactions.lose_answers = {"commit": 1000}
    cluster.transactions.refuse = {"abort": "overloaded"}
    async with Producer(cluster.bootstrap, transactional_id="p") as producer:
        transaction = producer.transaction()
        async with transaction:
            transaction.send("t", b"once")
            assert (await commit_in_vain(transaction)).code == "outcome_unknown"
            assert (await abort_in_vain(transaction)).code == "outcome_unknown"
            assert transaction.state.value == "unknown"
        assert (await begin_in_vain(producer)).code == "outcome_unknown"
        cluster.transactions.lose_answers, cluster.transactions.refuse = {}, {}
        assert (await abort_in_vain(transaction)).code == "transaction_committed"
        assert transaction.state is TransactionState.COMMITTED
        async with producer.transaction() as transaction:
            transaction.send("t", b"twice")
    assert seen(topic) == [b"once", b"twice"]


@pytest.mark.usefixtures("impatient")
async def test_what_was_handed_out_may_be_committed_elsewhere_s13(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t")
    async with Producer(cluster.bootstrap) as producer, producer.transaction() as transaction:
        transaction.send("t", b"a")
        output = await transaction.prepare()
        await commit_together([output], bootstrap=cluster.bootstrap)
        cluster.transactions.refuse = {"abort": "overloaded"}
        assert (await abort_in_vain(transaction)).code == "outcome_unknown"
        assert transaction.state.value == "unknown"
        cluster.transactions.refuse = {}
        await transaction.commit()
    assert seen(topic) == [b"a"]


@pytest.mark.usefixtures("impatient")
async def test_a_refusal_that_decides_nothing_and_an_abort_without_an_answer_leave_it_unknown_s13(
    cluster: FakeCluster,
) -> None:
    """An earlier copy of the request may still be in flight to another node."""
    topic = cluster.create_topic("t")
    async with Producer(cluster.bootstrap, transactional_id="p") as producer:
        transaction = producer.transaction()
        async with transaction:
            transaction.send("t", b"once")
            cluster.transactions.refuse = {"commit": "not_found", "abort": "internal_error"}
            error = await commit_in_vain(transaction)
            assert (type(error), error.code) == (RetriableError, "outcome_unknown")
            assert transaction.state.value == "unknown"
            cluster.transactions.refuse = {}
        await transaction.commit()
    assert seen(topic) == [b"once"]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("code", ["unsupported_version", "authorization_failed"])
async def test_an_abort_that_is_refused_without_a_decision_leaves_it_unknown_s13(
    cluster: FakeCluster, code: str
) -> None:
    """The commit may be applied by another node, and the refusals come from one that has not decided anything."""
    topic = cluster.create_topic("t")
    async with Producer(cluster.bootstrap, transactional_id="p") as producer:
        transaction = producer.transaction()
        async with transaction:
            transaction.send("t", b"once")
            cluster.transactions.refuse = {"commit": code, "abort": code}
            assert (await commit_in_vain(transaction)).code == "outcome_unknown"
            assert transaction.state is TransactionState.UNKNOWN
            with pytest.raises(RetriableError) as caught:
                await transaction.abort()
            assert caught.value.code == "outcome_unknown"
            assert transaction.state is TransactionState.UNKNOWN
            assert (await begin_in_vain(producer)).code == "outcome_unknown"
            cluster.transactions.refuse = {}
        await transaction.commit()
    assert seen(topic) == [b"once"]


async def test_what_nobody_can_have_committed_is_aborted_whoever_has_the_name(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t")
    cluster.nodes[1].on_produce = lambda _: Fate(error="timestamp_out_of_range")
    async with Producer(cluster.bootstrap, transactional_id="p", linger_ms=0) as producer:
        transaction = producer.transaction()
        with pytest.raises(InvalidRequest) as caught:
            async with transaction:
                transaction.send("t", b"refused")
                cluster.transactions.refuse = {"abort": "producer_fenced"}
        assert caught.value.code == "producer_fenced"
        assert transaction.state is TransactionState.ABORTED
        assert (await commit_in_vain(transaction)).code == "transaction_aborted"
        assert (await begin_in_vain(producer)).code == "producer_fenced"
    assert seen(topic) == []


# --- Together --------------------------------------------------------------------------------------------------------


async def test_one_that_was_committed_before_does_not_commit_the_others_s13(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t")
    async with (
        Producer(cluster.bootstrap) as a,
        Producer(cluster.bootstrap) as b,
        a.transaction() as one,
        b.transaction() as other,
    ):
        one.send("t", b"one")
        other.send("t", b"other")
        await commit_together([await one.prepare()], bootstrap=cluster.bootstrap)
        with pytest.raises(InvalidRequest) as caught:
            await commit_together([one, other], positions={"x": (-1, 0)})
        assert caught.value.code == "transaction_committed"
        assert (one.state, other.state) == (TransactionState.COMMITTED, TransactionState.ABORTED)
    assert seen(topic) == [b"one"]
    assert cluster.transactions.positions == {}


async def test_what_was_not_answered_is_asked_for_as_it_was_s13(cluster: FakeCluster) -> None:
    """Otherwise the first commit's answer would be taken for the second's, which was never carried out."""
    topic = cluster.create_topic("t")
    async with Producer(cluster.bootstrap) as a, Producer(cluster.bootstrap) as b:
        async with a.transaction() as one, b.transaction() as other:
            one.send("t", b"one")
            other.send("t", b"other")
            cluster.transactions.lose_answers = {"commit": 1000}
            with pytest.raises(RetriableError):
                await commit_together([one, other], positions={"x": (-1, 0)}, timeout=0.3)
            cluster.transactions.lose_answers = {}
            for again in ([one], [one, other]):
                with pytest.raises(InvalidRequest, match="retry it unchanged"):
                    await commit_together(again, positions={"y": (-1, 0)})
            with pytest.raises(InvalidRequest, match="retry it unchanged"):
                await one.commit()
            assert one.state.value == "unknown"
            await commit_together([other, one], positions={"x": (-1, 0)})
        assert (one.state, other.state) == (TransactionState.COMMITTED, TransactionState.COMMITTED)
    assert sorted(value or b"" for value in seen(topic)) == [b"one", b"other"]
    assert cluster.transactions.positions == {"x": 0}


# --- Duplicate initializations ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("impatient")
async def test_an_initialisation_is_repeated_under_its_number_until_it_is_answered(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t")
    cluster.transactions.lose_answers = {"initialize": 1000}
    async with Producer(cluster.bootstrap, transactional_id="p") as producer:
        for _ in range(2):
            assert (await begin_in_vain(producer)).retriable
        cluster.transactions.lose_answers = {}
        async with producer.transaction() as transaction:
            assert transaction.key.producer_epoch == 0
            transaction.send("t", b"a")
    assert len({one.attempt for one in cluster.transactions.asked("initialize")}) == 1
    assert seen(topic) == [b"a"]


@pytest.mark.usefixtures("impatient")
async def test_one_that_is_repeated_after_another_producers_hears_that_it_is_fenced_s13(cluster: FakeCluster) -> None:
    topic = cluster.create_topic("t")
    async with (
        Producer(cluster.bootstrap, transactional_id="p") as late,
        Producer(cluster.bootstrap, transactional_id="p") as successor,
    ):
        cluster.transactions.lose_answers = {"initialize": 1000}
        assert (await begin_in_vain(late)).retriable
        cluster.transactions.lose_answers = {}
        async with successor.transaction() as transaction:
            transaction.send("t", b"a")
            for _ in range(2):
                assert (await begin_in_vain(late)).code == "producer_fenced"
    assert seen(topic) == [b"a"]


@pytest.mark.usefixtures("impatient")
async def test_who_begins_anew_when_it_was_replaced_is_fenced_and_fences_nobody_s13(cluster: FakeCluster) -> None:
    """The client knows that its last transaction is committed, but not its next key."""
    topic = cluster.create_topic("t")
    async with (
        Producer(cluster.bootstrap, transactional_id="p") as replaced,
        Producer(cluster.bootstrap, transactional_id="p") as successor,
    ):
        transaction = replaced.transaction()
        async with transaction:
            transaction.send("t", b"a")
            cluster.transactions.lose_answers = {"commit": 1000}
            assert (await commit_in_vain(transaction)).code == "outcome_unknown"
            cluster.transactions.lose_answers = {}
        assert (await abort_in_vain(transaction)).code == "transaction_committed"
        async with successor.transaction() as transaction:
            transaction.send("t", b"b")
            assert (await begin_in_vain(replaced)).code == "producer_fenced"
        async with successor.transaction() as transaction:
            transaction.send("t", b"c")
    assert seen(topic) == [b"a", b"b", b"c"]


@pytest.mark.usefixtures("impatient")
async def test_a_name_that_was_forgotten_begins_anew(cluster: FakeCluster) -> None:
    """The name was unused until its last transaction was forgotten: that must not block it permanently."""
    topic = cluster.create_topic("t")
    async with Producer(cluster.bootstrap, transactional_id="p", linger_ms=0) as producer:
        async with producer.transaction() as transaction:
            transaction.send("t", b"a")
        cluster.nodes[1].on_produce = lambda _: Fate(error="producer_ids_expired")
        cluster.transactions.refuse = {"abort": "outcome_unknown"}
        cluster.transactions.names.clear()
        with pytest.raises(InvalidRequest, match="producer_ids_expired"):
            async with producer.transaction() as transaction:
                transaction.send("t", b"refused")
        assert transaction.state is TransactionState.ABORTED
        cluster.nodes[1].on_produce = lambda _: Fate()
        async with producer.transaction() as transaction:
            transaction.send("t", b"b")
    assert seen(topic) == [b"a", b"b"]


# --- Records that a commit would leave out ----------------------------------------------------------------------------


async def test_a_record_that_nobody_has_awaited_is_not_left_out_of_a_commit_s13(cluster: FakeCluster) -> None:
    """If the buffer is full, `send_and_wait` sends when it is awaited."""
    topic = cluster.create_topic("t")
    async with Producer(cluster.bootstrap, buffer_bytes=1 << 21, linger_ms=0) as producer:
        with pytest.raises(InvalidRequest, match="was not awaited") as caught:
            async with producer.transaction() as transaction:
                waiting = [transaction.send_and_wait("t", bytes(1000)) for _ in range(3_000)]
        assert (caught.value.code, transaction.state) == ("transaction_aborted", TransactionState.ABORTED)
        told = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(one, RaftlogError) for one in told)
        async with producer.transaction() as transaction:
            waiting = [transaction.send_and_wait("t", bytes(1000)) for _ in range(3_000)]
            for one in waiting:
                await one
    assert seen(topic) == [bytes(1000)] * 3_000


# --- Closed meanwhile ------------------------------------------------------------------------------------------------


async def test_who_waits_for_a_commit_when_the_producer_is_closed_is_told_and_not_cancelled(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_manager, "CLOSE_TIMEOUT", 0.1)
    cluster.create_topic("t")
    asked, answer = asyncio.Event(), asyncio.Event()

    def hold(what: str) -> Coroutine[Any, Any, bool] | None:
        if what != "commit":
            return None
        asked.set()
        return answer.wait()

    cluster.transactions.before_answer = hold
    producer = Producer(cluster.bootstrap)
    transaction = producer.transaction()
    await transaction.__aenter__()
    transaction.send("t", b"a")
    committing = asyncio.create_task(transaction.commit())
    await asked.wait()
    await producer.close()
    with pytest.raises(RetriableError) as caught:
        await committing
    assert (caught.value.code, transaction.state) == ("outcome_unknown", TransactionState.UNKNOWN)
    answer.set()


# --- Commits that wait until they are visible -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wait", "timeout", "asked_ms"), [("visible", 1.0, 500), ("visible", 60.0, 2000), ("decided", 60.0, 0)]
)
async def test_a_commit_asks_the_broker_to_wait_for_its_markers_in_milliseconds(
    cluster: FakeCluster, wait: Wait, timeout: float, asked_ms: int
) -> None:
    """For half of the caller's time at most, so that there is time left for a retry."""
    topic = cluster.create_topic("t")
    async with Producer(cluster.bootstrap) as producer, producer.transaction() as transaction:
        transaction.send("t", b"once")
        await transaction.commit(wait=wait, timeout=timeout)
    (asked,) = cluster.transactions.asked("commit")
    assert asked.visible_within_ms == asked_ms
    assert seen(topic) == [b"once"]
