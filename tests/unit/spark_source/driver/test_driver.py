"""A streaming query's driver with a cluster in memory: its starting offsets, its errors, its costs when idle."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest

from raftlog.errors import InvalidRequest, RaftlogError
from spark_source.driver import batch as batch_driver
from spark_source.driver import latest, subscription
from spark_source.driver.stream import StreamDriver
from spark_source.reading.filters import Restrictions
from spark_source.reading.losses import DataLoss, LossKind
from spark_source.reading.offsets import PartitionRange, SourceOffset
from tests.support.spark.cluster import SparkCluster, fill

T = TypeVar("T")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latest, "FRESH_S", 0.0)
    monkeypatch.setattr(latest, "TOPICS_S", 0.0)
    monkeypatch.setattr(subscription, "STALE_NODE_S", 0.05)
    monkeypatch.setattr("spark_source.driver.stream.STALE_NODE_S", 0.05)


class Driven:
    """A driver called from another thread, as Spark does, while the cluster runs on this one's loop."""

    def __init__(self, driver: StreamDriver) -> None:
        self.driver = driver

    async def call(self, function: Callable[[StreamDriver], T]) -> T:
        return await asyncio.wait_for(asyncio.to_thread(function, self.driver), 20)

    async def initial(self) -> SourceOffset:
        return await self.call(lambda driver: driver.initial())

    async def next(self, start: SourceOffset, limit: int | None = None, *, enough: bool = False) -> SourceOffset:
        return await self.call(lambda driver: driver.next(start, limit, wait_for_enough=enough))

    async def plan(self, start: SourceOffset, end: SourceOffset) -> list[tuple[int, int, int]]:
        found = await self.call(lambda driver: driver.plan(start, end))
        return [(one.partition, one.start, one.end) for one in found]


@asynccontextmanager
async def driving(cluster: SparkCluster, **options: str) -> AsyncIterator[Driven]:
    chosen = cluster.options(
        **options if {"subscribePattern", "assign"} & options.keys() else {"subscribe": "t", **options}
    )
    driver = await asyncio.to_thread(StreamDriver, chosen)
    try:
        yield Driven(driver)
    finally:
        await asyncio.to_thread(driver.close)


async def test_micro_batches_follow_one_another() -> None:
    async with SparkCluster() as cluster:
        topic = cluster.create_topic("t", partitions=2)
        fill(topic.partitions[0], 30)
        fill(topic.partitions[1], 10)
        async with driving(cluster, startingOffsets="earliest") as query:
            first = await query.initial()
            assert first.ends == {"t": {0: 0, 1: 0}}
            second = await query.next(first, 20)
            assert second.ends == {"t": {0: 15, 1: 5}}
            assert await query.plan(first, second) == [(0, 0, 15), (1, 0, 5)]
            third = await query.next(second)
            assert third.ends == {"t": {0: 30, 1: 10}}
            assert await query.next(third) is third
            fill(topic.partitions[1], 1)
            assert (await query.next(third)).ends == {"t": {0: 30, 1: 11}}
            assert (await query.call(lambda driver: driver.latest())) is not None


async def test_the_initial_offset_is_requested_once() -> None:
    async with SparkCluster() as cluster:
        topic = cluster.create_topic("t")
        fill(topic.partitions[0], 10)
        async with driving(cluster) as query:
            first = await query.initial()
            fill(topic.partitions[0], 10)
            assert await query.initial() == first == SourceOffset(first.topic_ids, {"t": {0: 10}}, {"t": {0: 10}})


async def test_an_idle_query_waits_at_the_cluster_and_is_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark asks sixty times per second; the cluster is asked every few seconds."""
    monkeypatch.setattr(latest, "CALM_S", 0.0)
    async with SparkCluster() as cluster:
        topic = cluster.create_topic("t")
        fill(topic.partitions[0], 10)
        async with driving(cluster) as query:
            first = await query.initial()
            await query.next(first)
            await cluster.until(lambda: "POST /v1/fetch" in cluster.calls)
            asked = len(cluster.calls)
            for _ in range(50):
                assert await query.next(first) is first
            assert len(cluster.calls) == asked
            fill(topic.partitions[0], 1)
            cluster.wake()
            async with asyncio.timeout(10):
                following = await query.next(first)
                while following is first:
                    following = await query.next(first)
            assert following.ends == {"t": {0: 11}}


async def test_available_now_stops_at_the_initial_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async with SparkCluster() as cluster:
        topic = cluster.create_topic("t")
        fill(topic.partitions[0], 10)
        async with driving(cluster, startingOffsets="earliest", group="lag") as query:
            await query.call(lambda driver: driver.freeze())
            first = await query.initial()
            second = await query.next(first, 6)
            fill(topic.partitions[0], 10)
            cluster.create_topic("u")
            third = await query.next(second, 6)
            assert (second.ends, third.ends) == ({"t": {0: 6}}, {"t": {0: 10}})
            assert await query.next(third, 6) is third
            # The end of the last micro-batch is committed before Spark ends the query.
            assert cluster.commits[-1]["group"] == "lag"
            assert [one["offset"] for one in cluster.commits[-1]["offsets"]] == [10]


async def test_it_waits_for_enough_records() -> None:
    async with SparkCluster() as cluster:
        topic = cluster.create_topic("t")
        async with driving(cluster, minOffsetsPerTrigger="5", maxTriggerDelay="1d") as query:
            first = await query.initial()
            fill(topic.partitions[0], 1)
            second = await query.next(first, enough=True)
            assert second is not first
            fill(topic.partitions[0], 4)
            assert await query.next(second, enough=True) is second
            fill(topic.partitions[0], 1)
            assert (await query.next(second, enough=True)).ends == {"t": {0: 6}}


async def test_new_partitions_and_topics_are_found() -> None:
    async with SparkCluster() as cluster:
        fill(cluster.create_topic("metric-a").partitions[0], 3)
        fill(cluster.create_topic("other").partitions[0], 3)
        async with driving(cluster, subscribePattern="metric-.*") as query:
            first = await query.initial()
            assert first.ends == {"metric-a": {0: 3}}
            fill(cluster.create_topic("metric-b").partitions[0], 4)
            second = await query.next(first)
            assert second.ends == {"metric-a": {0: 3}, "metric-b": {0: 4}}
            assert await query.plan(first, second) == [(0, 0, 4)]


async def test_many_topics_are_requested_at_once() -> None:
    async with SparkCluster() as cluster:
        names = [f"topic-{number}" for number in range(40)]
        for name in names:
            fill(cluster.create_topic(name).partitions[0], 2)
        async with driving(cluster, subscribe=",".join(names), startingOffsets="earliest") as query:
            first = await query.initial()
            second = await query.next(first)
            assert len(await query.plan(first, second)) == 40
        assert cluster.describes == 0 and len(cluster.calls) < 12


async def test_a_missing_topic_is_named() -> None:
    async with SparkCluster() as cluster:
        async with driving(cluster) as query:
            with pytest.raises(InvalidRequest, match="there is no topic t") as raised:
                await query.initial()
            assert raised.value.code == "unknown_topic"
        cluster.create_topic("t")
        with pytest.raises(InvalidRequest, match="partitions 0 to 0, not 3"):
            async with driving(cluster, assign='{"t": [0, 3]}') as query:
                await query.initial()


@pytest.mark.parametrize(("start", "kind"), [(5, LossKind.RETENTION), (200, LossKind.BEYOND_END)])
async def test_a_start_that_is_out_of_range_is_a_loss(start: int, kind: LossKind) -> None:
    async with SparkCluster() as cluster:
        topic = cluster.create_topic("t")
        fill(topic.partitions[0], 100)
        topic.partitions[0].start_offset = 40
        starting = f'{{"t": {{"0": {start}}}}}'
        async with driving(cluster, startingOffsets=starting) as query:
            with pytest.raises(DataLoss) as raised:
                await query.initial()
            assert raised.value.losses[0].kind is kind
        async with driving(cluster, startingOffsets=starting, failOnDataLoss="false") as query:
            assert (await query.initial()).ends == {"t": {0: 40 if start == 5 else 100}}


async def test_changes_of_a_topic_while_it_is_read(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "raftlog.spark")
    async with SparkCluster() as cluster:
        topic = cluster.create_topic("t")
        fill(topic.partitions[0], 20)
        strict, lenient = driving(cluster), driving(cluster, failOnDataLoss="false")
        async with strict as query, lenient as tolerant:
            start = SourceOffset({"t": topic.id.hex()}, {}, {"t": {0: 10}})
            end = SourceOffset({"t": topic.id.hex()}, {}, {"t": {0: 20}})
            topic.partitions[0].start_offset = 15
            assert await losing(query.next(start)) is LossKind.RETENTION
            assert await losing(query.plan(start, end)) is LossKind.RETENTION
            assert (await tolerant.next(start)).ends == {"t": {0: 20}}
            assert await tolerant.plan(start, end) == [(0, 15, 20)]

            fill(cluster.create_topic("t").partitions[0], 3)
            assert await losing(query.next(end)) is LossKind.RECREATED
            assert await losing(query.plan(start, end)) is LossKind.RECREATED
            again = await tolerant.next(end)
            assert (again.ends, again.base) == ({"t": {0: 3}}, {"t": {0: 0}})
            assert await tolerant.plan(end, again) == [(0, 0, 3)]
            assert await tolerant.plan(start, end) == []

            del cluster.topics["t"]
            assert await losing(query.next(end)) is LossKind.DELETED
            assert (await tolerant.next(again)).ends == {}
    assert caplog.text.count("retention overtook the query") == 1  # reported once per run


async def losing(call: object) -> LossKind:
    with pytest.raises(DataLoss) as raised:
        await call  # type: ignore[misc]
    (loss,) = raised.value.losses
    return loss.kind


async def test_a_topic_that_is_no_longer_subscribed_is_no_loss(caplog: pytest.LogCaptureFixture) -> None:
    async with SparkCluster() as cluster:
        one, two = cluster.create_topic("t"), cluster.create_topic("u")
        async with driving(cluster) as query:
            start = SourceOffset({"t": one.id.hex(), "u": two.id.hex()}, {}, {"t": {0: 0}, "u": {0: 0}})
            assert (await query.next(start)).ends == {"t": {0: 0}}
    assert "no longer reads topic u" in caplog.text


@pytest.mark.parametrize(
    ("subscription", "listed"),
    [({}, True), ({"subscribePattern": "t.*"}, True), ({"subscribePattern": "t.*"}, False)],
)
async def test_a_lagging_node_removes_no_topic(subscription: dict[str, str], listed: bool) -> None:
    """It describes a topic that was deleted before the one that is read was created, or does not list it: if it were
    believed, the query would begin that topic again, and read all of it twice."""
    async with SparkCluster(nodes=2) as cluster:
        old = cluster.create_topic("t")
        fill(old.partitions[0], 3)
        topic, behind = cluster.create_topic("t"), cluster.nodes[1]
        fill(topic.partitions[0], 20)
        topic.partitions[0].leader, behind.behind["t"] = 2, old
        behind.unseen = set() if listed else {"t"}  # type: ignore[attr-defined]
        start = SourceOffset({"t": topic.id.hex()}, {}, {"t": {0: 10}})
        end = SourceOffset({"t": topic.id.hex()}, {}, {"t": {0: 20}})
        async with driving(cluster, failOnDataLoss="false", **subscription) as query:
            assert (await query.next(start)).ends == end.ends
            assert await query.plan(start, end) == [(0, 10, 20)]
        asked = "GET /v1/topics" if subscription else "GET /v1/topics/t"
        assert asked in behind.api_calls


@pytest.mark.parametrize("subscription", [{}, {"subscribePattern": "t.*"}, {"assign": '{"t": [0, 1]}'}])
async def test_a_lagging_node_removes_no_partition(subscription: dict[str, str]) -> None:
    """A topic never has fewer partitions than before. If the node were believed, the query would begin the others
    again, and read all of them twice."""
    async with SparkCluster(nodes=2) as cluster:
        topic, behind = cluster.create_topic("t", partitions=2), cluster.nodes[1]
        fill(topic.partitions[0], 20)
        fill(topic.partitions[1], 20)
        behind.partitions_known = 1  # type: ignore[attr-defined]
        start = SourceOffset({"t": topic.id.hex()}, {}, {"t": {0: 10, 1: 10}})
        end = SourceOffset({"t": topic.id.hex()}, {}, {"t": {0: 20, 1: 20}})
        async with driving(cluster, **subscription) as query:
            assert (await query.next(start)).ends == end.ends
            assert await query.plan(start, end) == [(0, 10, 20), (1, 10, 20)]
        assert behind.api_calls


async def test_an_end_that_seems_to_move_back_is_no_loss() -> None:
    """A leader that was elected a moment ago may not know the committed end (S3)."""
    async with SparkCluster() as cluster:
        topic = cluster.create_topic("t")
        fill(topic.partitions[0], 20)
        async with driving(cluster) as query:
            start = SourceOffset({"t": topic.id.hex()}, {}, {"t": {0: 25}})
            assert await query.next(start) is start
            fill(topic.partitions[0], 10)
            assert (await query.next(start)).ends == {"t": {0: 30}}


async def test_progress_is_committed_in_the_background_and_never_fails_the_query(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with SparkCluster() as cluster:
        topic = cluster.create_topic("t")
        fill(topic.partitions[0], 10)
        async with driving(cluster, startingOffsets="earliest", group="lag") as query:
            first = await query.initial()
            second = await query.next(first)
            await cluster.until(lambda: len(cluster.commits) == 1)
            assert [one["offset"] for one in cluster.commits[0]["offsets"]] == [0]
            assert cluster.commits[0]["offsets"][0]["topic_id"] == topic.id.hex()
            for _ in range(5):
                await query.next(second)
            await cluster.until(lambda: len(cluster.commits) == 2)
            assert [one["offset"] for one in cluster.commits[1]["offsets"]] == [10]
            cluster.group_problem = "group_not_empty"
            fill(topic.partitions[0], 10)
            third = await query.next(second)
            for _ in range(3):
                await query.next(third)
            await asyncio.to_thread(query.driver.close)
        assert caplog.text.count("could not be written to the group lag") <= 1
        assert len(cluster.commits) == 2


async def test_a_partition_without_a_leader_holds_up_no_other() -> None:
    async with SparkCluster() as cluster:
        topic = cluster.create_topic("t", partitions=2)
        async with driving(cluster, startingOffsets="earliest", requestTimeoutMs="300") as query:
            cluster.leaderless[0] = 1_000
            with pytest.raises(RaftlogError, match="no leader reported the offsets of t/0") as raised:
                await query.initial()
            assert raised.value.code == "leader_not_available"
            cluster.leaderless[0] = 0
            first = await query.initial()
            cluster.leaderless[0] = 1_000
            for partition in topic.partitions:
                fill(partition, 5)
            second = await query.next(first)
            assert second.ends == {"t": {0: 0, 1: 5}}
            assert await query.plan(first, second) == [(1, 0, 5)]
            cluster.leaderless[0] = 0
            assert (await query.next(second)).ends == {"t": {0: 5, 1: 5}}


async def test_an_election_is_waited_for_if_a_time_is_requested() -> None:
    async with SparkCluster() as cluster:
        fill(cluster.create_topic("t").partitions[0], 10, timestamp_ms=2_000)
        async with driving(cluster, startingTimestamp="1000") as query:
            cluster.leaderless[0] = 3
            assert (await query.initial()).ends == {"t": {0: 0}}
            assert cluster.leaderless[0] == 0


async def test_a_cluster_out_of_reach_ends_the_query_in_time() -> None:
    async with SparkCluster() as cluster:
        cluster.create_topic("t")
        async with driving(cluster, requestTimeoutMs="300") as query:
            first = await query.initial()
            await cluster.nodes[1].kill()
            with pytest.raises(RaftlogError) as raised:
                while True:
                    assert await query.next(first) is first  # for a while the last answer is used
            assert raised.value.code == "connection_lost"


# --- Batches ----------------------------------------------------------------------------------------------------------


async def plan(
    cluster: SparkCluster, left: Restrictions | None = None, **options: str
) -> list[tuple[str, int, int, int]]:
    chosen = cluster.options(streaming=False, **options)
    found: list[PartitionRange] = await asyncio.to_thread(batch_driver.plan, chosen, left or Restrictions())
    return [(one.topic, one.partition, one.start, one.end) for one in found]


async def test_a_batch_reads_the_available_records() -> None:
    async with SparkCluster() as cluster:
        topic = cluster.create_topic("t", partitions=2)
        fill(topic.partitions[0], 10, timestamp_ms=1_000)
        fill(topic.partitions[0], 10, timestamp_ms=2_000)
        fill(topic.partitions[1], 5, timestamp_ms=1_000)
        assert await plan(cluster, subscribe="t") == [("t", 0, 0, 20), ("t", 1, 0, 5)]
        assert await plan(cluster, assign='{"t": [1]}') == [("t", 1, 0, 5)]
        between = {"startingOffsets": '{"t": {"0": 3, "1": -2}}', "endingOffsets": '{"t": {"0": -1, "1": 2}}'}
        assert await plan(cluster, subscribe="t", **between) == [("t", 0, 3, 20), ("t", 1, 0, 2)]
        assert await plan(cluster, subscribe="t", endingTimestamp="2000") == [("t", 0, 0, 10), ("t", 1, 0, 5)]
        with pytest.raises(InvalidRequest, match="t/1 has no record at or after 2000"):
            await plan(cluster, subscribe="t", startingTimestamp="2000")
        late = {"startingTimestamp": "2000", "startingOffsetsByTimestampStrategy": "latest"}
        assert await plan(cluster, subscribe="t", **late) == [("t", 0, 10, 20)]
        assert await plan(cluster, subscribe="t", minPartitions="3") == [
            ("t", 0, 0, 10),
            ("t", 0, 10, 20),
            ("t", 1, 0, 5),
        ]
        assert await plan(cluster, Restrictions(since_ms=1500, end=15), subscribe="t") == [("t", 0, 10, 15)]
        assert await plan(cluster, Restrictions(partitions=frozenset({1}), start=3), subscribe="t") == [("t", 1, 3, 5)]
        assert await plan(cluster, subscribePattern="nothing.*") == []
        with pytest.raises(DataLoss, match="beyond the log's end"):
            await plan(cluster, subscribe="t", endingOffsets='{"t": {"0": 99, "1": -1}}')
