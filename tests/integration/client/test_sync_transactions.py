"""Transactions of `raftlog.sync`, with a cluster in memory: the same outcomes as in asyncio, from any thread (S13)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from raftlog.client import ConsumedOffsets, ConsumedRange, TransactionState
from raftlog.errors import InvalidRequest
from raftlog.sync import Producer, commit_together
from tests.support.cli_runner import Background
from tests.support.client.fake_cluster import FakeCluster
from tests.support.client.fake_transactions import seen

pytestmark = pytest.mark.integration


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with Background(FakeCluster()) as background:
        background.cluster.create_topic("t", partitions=2)
        yield background.cluster


def test_a_block_commits_what_it_sends_and_one_that_raises_aborts_s13(cluster: FakeCluster) -> None:
    topic = cluster.topics["t"]
    with Producer(cluster.bootstrap, transactional_id="p") as producer:
        with producer.transaction(wait="visible") as transaction:
            sent = [transaction.send("t", b"%d" % number, partition=0) for number in range(100)]
            transaction.send_many("t", [b"many"] * 3, partition=1)
        assert transaction.state is TransactionState.COMMITTED
        assert [one.result(5).offset for one in sent] == list(range(100))
        with pytest.raises(ZeroDivisionError), producer.transaction() as transaction:
            transaction.send("t", b"never")
            raise ZeroDivisionError
        assert transaction.state is TransactionState.ABORTED
        with producer.transaction() as transaction:
            transaction.send("t", b"after", partition=0)
    assert seen(topic) == [b"%d" % number for number in range(100)] + [b"after"] + [b"many"] * 3


def test_a_refused_record_breaks_the_transaction_s13(cluster: FakeCluster) -> None:
    """A program that does not read the record's result must not commit without it."""
    with Producer(cluster.bootstrap, transactional_id="p") as producer:
        producer.prepare("t")
        for wrong in (bytes(2_000_000), "text"):
            with pytest.raises(InvalidRequest) as caught, producer.transaction() as transaction:
                transaction.send("t", b"fine")
                transaction.send("t", wrong)  # type: ignore[arg-type]
            assert caught.value.code == "transaction_aborted"
            assert transaction.state is TransactionState.ABORTED
        with pytest.raises(InvalidRequest, match="sends only in transactions"):
            producer.send("t", b"plain").result(5)
        producer.send("t", b"plain")
        with pytest.raises(InvalidRequest, match="sends only in transactions"):
            producer.flush()
    assert seen(cluster.topics["t"]) == [] and cluster.transactions.asked("commit") == []


def test_offsets_and_positions_move_with_it_s13(cluster: FakeCluster) -> None:
    topic_id = cluster.topics["t"].id.hex()
    with Producer(cluster.bootstrap) as producer, producer.transaction() as transaction:
        transaction.send("t", b"a")
        transaction.send_offsets(ConsumedOffsets("g", (ConsumedRange(topic_id, 0, -1, 4),)))
        transaction.set_position("x", -1, 9)
        transaction.commit()
        transaction.commit()
        with pytest.raises(InvalidRequest, match="committed"):
            transaction.set_position("x", 9, 10)
    assert cluster.transactions.group_offsets == {("g", topic_id, 0): 4}
    assert cluster.transactions.positions == {"x": 9}


def test_writers_on_several_threads_commit_together_or_not_at_all_s13(cluster: FakeCluster) -> None:
    with Producer(cluster.bootstrap, transactional_id="p") as named, Producer(cluster.bootstrap) as unnamed:
        with Producer(cluster.bootstrap) as elsewhere, elsewhere.transaction() as away:
            away.send("t", b"away")
            output = away.prepare()
        with named.transaction() as one, unnamed.transaction() as other:
            one.send("t", b"one")
            other.send("t", b"other")
            commit_together([one, other, output], positions={"x": (-1, 0)})
            assert (one.state, other.state) == (TransactionState.COMMITTED, TransactionState.COMMITTED)
        with named.transaction() as one, unnamed.transaction() as other:
            one.send("t", b"never")
            other.send("t", bytes(2_000_000))
            with pytest.raises(InvalidRequest, match="batch_too_large"):
                commit_together([one, other])
            assert (one.state, other.state) == (TransactionState.ABORTED, TransactionState.ABORTED)
        with named.transaction() as one:
            one.send("t", b"goes on")
            one.abort()
            assert one.state is TransactionState.ABORTED
    assert sorted(value or b"" for value in seen(cluster.topics["t"])) == [b"away", b"one", b"other"]


def test_closing_a_producer_meanwhile_does_not_affect_the_others(cluster: FakeCluster) -> None:
    with Producer(cluster.bootstrap) as closed, Producer(cluster.bootstrap, transactional_id="p") as named:
        one, other = closed.transaction(), named.transaction()
        with other:
            one.__enter__()
            one.send("t", b"one")
            other.send("t", b"other")

            def close(what: str) -> object:
                if what != "commit":
                    return None
                return asyncio.get_running_loop().run_in_executor(None, closed.close)

            cluster.transactions.before_answer = close
            commit_together([one, other])
            assert other.state is TransactionState.COMMITTED
        cluster.transactions.before_answer = lambda _: None
        with named.transaction() as other:
            other.send("t", b"goes on")
    assert sorted(value or b"" for value in seen(cluster.topics["t"])) == [b"goes on", b"one", b"other"]
