"""A sink's tasks and its driver with a cluster in memory: the visible records are the committed ones,
once (S1, S13).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from raftlog.client.cluster.api import HttpApi
from raftlog.client.transactions.api import TransactionApi
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError
from spark_source.connections import Connections
from spark_source.writing.claims import CLAIMED_TOGETHER, AttemptNumbers
from spark_source.writing.columns import find
from spark_source.writing.decision import publish, retire
from spark_source.writing.names import BatchJob, MicroBatch
from spark_source.writing.options import parse
from spark_source.writing.publication import Written, blocks_of, publication
from spark_source.writing.task import write
from tests.support.client.fake_cluster import Fate
from tests.support.client.fake_transactions import seen
from tests.support.spark.connections import opened
from tests.support.spark.sink import SinkCluster

__all__ = ["opened"]

FIELDS = [("value", "binary"), ("partition", "int")]
RUNS = itertools.count()
"""Numbers of runs: the process remembers of which run of a query it has published a micro-batch."""


class World:
    """A cluster, and the actions of Spark on a sink."""

    def __init__(self, cluster: SinkCluster) -> None:
        self.cluster = cluster
        self.topic = cluster.create_topic("out", 2)
        self.run = f"run {next(RUNS)}"

    def work(self, batch_id: int = 0) -> MicroBatch:
        return MicroBatch("q", "sink", batch_id, self.run)

    async def attempt(self, work: Any, values: Sequence[bytes], *, attempt: int = 0, **options: str) -> Written:
        """A task that writes these rows, in batches of two."""
        return await self.task(work, batches(values), attempt=attempt, **options)

    async def task(self, work: Any, given: Iterator[pa.RecordBatch], *, attempt: int = 0, **options: str) -> Written:
        streaming = isinstance(work, MicroBatch)
        told = {"raftlog.bootstrap.servers": self.cluster.bootstrap, "topic": "out", **options}
        parsed = parse(told, streaming=streaming)
        columns = find(FIELDS, parsed.topic, False)
        return await asyncio.to_thread(write, parsed, columns, work, attempt, given)

    async def commit(self, messages: Sequence[Written | None], batch_id: int | None, **options: str) -> bool:
        wanted = publication(messages, batch_id)
        assert wanted is not None
        parsed = parse({"raftlog.bootstrap.servers": self.cluster.bootstrap, **options}, streaming=True)
        async with api(self.cluster) as asked:
            return await publish(asked, parsed, wanted)

    def seen(self) -> list[bytes | None]:
        return seen(self.topic)

    def open(self) -> int:
        return sum(len(partition.open) for partition in self.topic.partitions)


class api:  # noqa: N801
    """`async with api(cluster) as asked`."""

    def __init__(self, cluster: SinkCluster) -> None:
        self._api = HttpApi(cluster.bootstrap)

    async def __aenter__(self) -> HttpApi:
        return self._api

    async def __aexit__(self, *_: object) -> None:
        await self._api.close()


def batches(values: Sequence[bytes], then: Callable[[], None] = lambda: None) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(values), 2):
        part = list(values[start : start + 2])
        yield pa.RecordBatch.from_pydict({"value": pa.array(part), "partition": pa.array([0] * len(part), pa.int32())})
    then()


@pytest.fixture
async def world(opened: list[Connections]) -> AsyncIterator[World]:
    async with SinkCluster() as cluster:
        yield World(cluster)
        for one in opened:
            await asyncio.to_thread(one.close)


# --- A micro-batch ----------------------------------------------------------------------------------------------------


async def test_a_micro_batch_is_visible_after_its_commit_which_moves_its_position_s13(world: World) -> None:
    messages = [await world.attempt(world.work(), [b"a", b"b", b"c"]), await world.attempt(world.work(), [b"d"])]
    assert world.seen() == [] and world.open() == 2
    assert messages[0].rows == 3 and {one.number for one in messages} == {0, 1}
    assert await world.commit(messages, 0)
    assert sorted(world.seen(), key=repr) == [b"a", b"b", b"c", b"d"]
    assert world.cluster.positions["spark/q/sink"] == 0
    assert world.open() == 0


async def test_a_published_micro_batch_is_not_written_again_s1(world: World) -> None:
    assert await world.commit([await world.attempt(world.work(), [b"a"])], 0)
    again = await world.attempt(world.work(), [b"a"])
    assert again.output is None and again.rows == 0
    produced = len(world.topic.partitions[0].values())
    assert not await world.commit([again], 0)
    assert len(world.topic.partitions[0].values()) == produced
    assert world.seen() == [b"a"]
    # And continues behind it.
    assert await world.commit([await world.attempt(world.work(1), [b"b"])], 1)
    assert world.seen() == [b"a", b"b"]


async def test_a_micro_batch_written_by_two_drivers_is_published_once_s13(world: World) -> None:
    """Both wrote before either decided: the slower one finds the position taken."""
    one, other = await world.attempt(world.work(), [b"a", b"b"]), await world.attempt(world.work(), [b"b", b"a"])
    assert await world.commit([other], 0)
    assert not await world.commit([one], 0)
    assert world.seen() == [b"b", b"a"] and world.open() == 0


async def test_the_slower_driver_may_learn_it_from_the_commit_itself_s13(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = await world.attempt(world.work(), [b"a"]), await world.attempt(world.work(), [b"a"])
    assert await world.commit([other], 0)
    before: dict[str, int | None] = {"spark/q/sink": None}

    async def old(self: TransactionApi, name: str) -> int | None:
        return before[name]

    monkeypatch.setattr(TransactionApi, "position", old)
    assert not await world.commit([one], 0)
    assert world.seen() == [b"a"] and world.open() == 0


async def test_attempts_that_were_not_chosen_are_aborted_with_the_commit_s13(world: World) -> None:
    """Including those of a driver that was killed before: they have the block of the same micro-batch."""
    await world.attempt(world.work(), [b"of a driver that died"])
    await world.attempt(world.work(), [b"speculative"])
    winner = await world.attempt(world.work(), [b"chosen"])
    assert world.open() == 3
    assert await world.commit([winner], 0)
    assert world.open() == 0 and world.seen() == [b"chosen"]


async def test_a_dead_drivers_open_transactions_are_aborted_by_the_next_one_s13(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the attempts of the next one have numbers of another block, and none of them has rows."""
    monkeypatch.setattr("spark_source.writing.names.IDS_PER_BLOCK", 2)
    monkeypatch.setattr("spark_source.writing.task.IDS_PER_BLOCK", 2)
    for number in range(5):
        await world.attempt(world.work(), [b"%d" % number])
    assert world.open() == 5 and len(world.cluster.blocks.named) == 3
    assert await world.commit([await world.attempt(world.work(), [])], 0)
    assert world.open() == 0 and world.seen() == []
    # From then on, only those of the attempts that it knows; and again with the next start of the query.
    asked = len(world.cluster.nodes[1].api_calls)
    assert await world.commit([await world.attempt(world.work(1), [b"a"])], 1)
    assert not [call for call in world.cluster.nodes[1].api_calls[asked:] if call.startswith("DELETE")]
    again = MicroBatch("q", "sink", 2, "another run")
    for _ in range(3):
        await world.attempt(again, [b"of a run that died"])
    assert await world.commit([await world.attempt(again, [])], 2)
    assert world.open() == 0 and world.seen() == [b"a"]


async def test_a_micro_batch_without_rows_moves_the_position_and_requests_no_ids(world: World) -> None:
    message = await world.attempt(world.work(), [])
    assert message == Written(world.work())
    assert world.cluster.blocks.named == {}
    assert await world.commit([message], 0)
    assert world.cluster.positions["spark/q/sink"] == 0 and world.topic.partitions[0].batches == []


async def test_a_failed_attempt_aborts_its_transaction(world: World) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await world.task(world.work(), batches([b"a" * 40_000] * 20, fail))
    await world.cluster.until(lambda: world.open() == 0)
    assert world.seen() == []


async def test_a_record_that_cannot_be_written_fails_the_task_and_nothing_is_visible_s11(world: World) -> None:
    world.topic.configs["max.message.bytes"] = "2000"
    with pytest.raises(InvalidRequest, match="exceeds the batch limit"):
        await world.attempt(world.work(), [b"small", b"x" * 5_000])
    assert world.seen() == []
    with pytest.raises(RaftlogError, match="unknown_topic"):
        await world.attempt(world.work(), [b"a"], topic="nowhere", deliveryTimeoutMs="3000")


async def test_an_abort_ends_the_written_transactions(world: World) -> None:
    message = await world.attempt(world.work(), [b"a"])
    async with api(world.cluster) as asked:
        await retire(asked, blocks_of([None, message]))
        assert world.open() == 0
        world.cluster.nodes[1].api_problem = {"code": "overloaded", "detail": "says the test"}
        await retire(asked, ["nobody/0"])  # in time the cluster does it by itself


async def test_a_timeout_is_reported_and_the_work_repeated(world: World) -> None:
    message = await world.attempt(world.work(), [b"a"])
    assert message.output is not None
    world.cluster.blocks.retire("spark/q/sink/0/0")
    with pytest.raises(InvalidRequest, match="raise transactionTimeoutMs") as raised:
        await world.commit([message], 0)
    assert raised.value.code == "transaction_aborted"
    assert await world.commit([await world.attempt(world.work(), [b"a"])], 0)
    assert world.seen() == [b"a"]


async def test_a_commit_whose_answer_is_lost_is_retried(world: World) -> None:
    message = await world.attempt(world.work(), [b"a"])
    world.cluster.transactions.lose_answers["commit"] = 1
    await world.commit([message], 0)
    assert world.seen() == [b"a"]


async def test_records_are_resent_if_an_answer_was_lost_s1(world: World) -> None:
    fates = iter([Fate(drop_after=True)])
    world.cluster.nodes[1].on_produce = lambda _: next(fates, Fate())
    assert await world.commit([await world.attempt(world.work(), [b"a", b"b", b"c"])], 0)
    assert world.seen() == [b"a", b"b", b"c"]


# --- A batch query ----------------------------------------------------------------------------------------------------


async def test_a_batch_query_is_one_transaction_without_a_position_s13(world: World) -> None:
    job = BatchJob("j")
    failed = await world.attempt(job, [b"x"], attempt=6)
    messages = [await world.attempt(job, [b"a"], attempt=7), await world.attempt(job, [b"b"], attempt=1_000)]
    assert [one.number for one in (failed, *messages)] == [6, 7, 1_000]
    assert await world.commit(messages, None)
    assert world.seen() == [b"a", b"b"] and world.open() == 0
    assert world.cluster.positions == {}
    assert world.cluster.blocks.retired == ["spark/job/j/0", "spark/job/j/1"]


async def test_without_exactly_once_records_are_visible_at_once(world: World) -> None:
    message = await world.attempt(world.work(), [b"a", b"b"], exactlyOnce="false")
    assert message == Written(None, rows=2)
    assert world.seen() == [b"a", b"b"]
    assert world.cluster.blocks.named == {} and world.cluster.positions == {}


# --- Numbers of attempts ----------------------------------------------------------------------------------------------


async def test_no_number_is_claimed_twice_however_many_claim_at_once_s1(world: World) -> None:
    async with api(world.cluster) as asked:
        workers = [AttemptNumbers(TransactionApi(asked), lambda: 0.0) for _ in range(8)]
        world.cluster.transactions.lose_answers["commit"] = 3

        async def claim(worker: AttemptNumbers) -> list[int]:
            return [await worker.next("n", timeout=30) for _ in range(CLAIMED_TOGETHER + 1)]

        claimed = [number for some in await asyncio.gather(*map(claim, workers)) for number in some]
    assert len(set(claimed)) == len(claimed) == 8 * (CLAIMED_TOGETHER + 1)
    assert max(claimed) <= world.cluster.positions["n"]


async def test_claiming_ends_at_its_timeout(world: World) -> None:
    async with api(world.cluster) as asked:
        numbers = AttemptNumbers(TransactionApi(asked), lambda: 0.001)
        world.cluster.transactions.refuse["commit"] = "position_taken"
        with pytest.raises(RetriableError, match=r"in 0\.05 s; the last error was position_taken"):
            await numbers.next("n", timeout=0.05)
        world.cluster.transactions.refuse["commit"] = "invalid_request"
        with pytest.raises(InvalidRequest):
            await numbers.next("n", timeout=30)


async def test_numbers_of_many_queries_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_source.writing.claims.REMEMBERED_QUERIES", 2)
    async with api(world.cluster) as asked:
        numbers = AttemptNumbers(TransactionApi(asked))
        assert [await numbers.next(name, timeout=30) for name in "abca"] == [0, 0, 0, CLAIMED_TOGETHER]
