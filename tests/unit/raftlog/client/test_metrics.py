"""The clients' own metrics: what happened, once each, and how prometheus_client shows it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Mapping, Sequence

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families as parse_text

from raftlog import Consumer, Producer
from raftlog.client.prometheus import MeasuredClient, PrometheusCollector
from raftlog.errors import InvalidRequest, RetriableError
from raftlog.metrics.client_catalogue import ALL_OF_CLIENTS
from raftlog.metrics.histogram import HistogramState
from raftlog.metrics.measure import Family
from raftlog.sync import Consumer as BlockingConsumer
from raftlog.sync import Producer as BlockingProducer
from tests.support.client.fake_cluster import OK, FakeCluster, Fate

Numbers = Mapping[tuple[str, ...], float]


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as started:
        yield started


def number(client: MeasuredClient, name: str, *labels: str) -> float:
    """One value; of a histogram, the sum of what was observed."""
    (family,) = [one for one in client.metrics if one.measure.name == f"raftlog_client_{name}"]
    found = {labels: value.total if isinstance(value, HistogramState) else value for labels, value in family.samples}
    return found.get(labels, 0)


def once(*fates: Fate) -> object:
    """Return a callback that gives these fates to the first requests."""
    left = list(fates)
    return lambda request: left.pop(0) if left else OK


async def test_a_producer_counts_what_is_acknowledged(cluster: FakeCluster) -> None:
    cluster.create_topic("t")
    async with Producer(cluster.bootstrap, buffer_bytes=4 * 1024 * 1024) as producer:
        assert number(producer, "buffered_bytes") == number(producer, "acknowledged_records_total", "t") == 0
        for _ in range(10):
            producer.send("t", b"x" * 100)
        assert number(producer, "buffered_bytes") > 1_000
        await producer.flush()
        assert number(producer, "acknowledged_records_total", "t") == number(producer, "batch_records") == 10
        assert 1_000 < number(producer, "acknowledged_bytes_total", "t") == number(producer, "batch_bytes") < 3_000
        assert 0 < number(producer, "delivery_duration_seconds") < 60
        assert number(producer, "buffered_bytes") == number(producer, "produce_requests_in_flight") == 0
        assert number(producer, "buffer_limit_bytes") == 4 * 1024 * 1024


async def test_a_producer_counts_each_retry_and_the_records_that_failed(cluster: FakeCluster) -> None:
    cluster.create_topic("t", partitions=1)
    for node in cluster.nodes.values():
        node.on_produce = once(Fate(error="not_enough_replicas"), Fate(drop_before=True))  # type: ignore[assignment]
    async with Producer(cluster.bootstrap) as producer:
        await producer.prepare("t")
        producer.send("t", b"x", partition=0)
        await producer.flush()
        assert number(producer, "produce_retries_total", "not_enough_replicas") == 1
        assert number(producer, "produce_retries_total", "connection_lost") == 1
        assert number(producer, "acknowledged_records_total", "t") == 1
        for node in cluster.nodes.values():
            node.on_produce = lambda request: Fate(error="corrupt_batch")
        failing = producer.send("t", b"y", partition=0)
        with pytest.raises((InvalidRequest, RetriableError)) as error:
            await failing
        assert number(producer, "failed_records_total", "t", error.value.code) == 1
        assert number(producer, "acknowledged_records_total", "t") == 1


async def test_transactions_count_with_their_producer(cluster: FakeCluster) -> None:
    cluster.create_topic("t")
    async with Producer(cluster.bootstrap) as producer:
        async with producer.transaction() as transaction:
            transaction.send("t", b"x")
        producer.send("t", b"y")
        await producer.flush()
        assert number(producer, "acknowledged_records_total", "t") == 2


async def test_a_consumer_counts_what_it_fetches_and_shows_its_lag(cluster: FakeCluster) -> None:
    cluster.create_topic("t", partitions=1)
    async with Producer(cluster.bootstrap) as producer:
        for _ in range(10):
            producer.send("t", b"x", partition=0)
        await producer.flush()
    for node in cluster.nodes.values():
        node.on_fetch = once(Fate(error="overloaded"))  # type: ignore[assignment]
    async with Consumer(cluster.bootstrap, "t") as consumer:
        assert len(await consumer.poll(4, timeout=10)) == 4
        assert number(consumer, "lag_records", "t", "0") == 6
        assert number(consumer, "fetched_records_total", "t") == number(consumer, "fetched_batch_records") == 10
        assert number(consumer, "fetched_bytes_total", "t") > 100
        assert number(consumer, "fetch_retries_total", "overloaded") >= 1
        assert len(await consumer.poll(timeout=10)) == 6
        assert number(consumer, "lag_records", "t", "0") == number(consumer, "prefetched_bytes") == 0


async def test_the_blocking_clients_have_the_same_numbers() -> None:
    def program(bootstrap: str) -> tuple[float, float, Sequence[str]]:
        with BlockingProducer(bootstrap) as producer:
            producer.send("t", b"x")
            producer.flush(10)
            sent = number(producer, "acknowledged_records_total", "t")
        with BlockingConsumer(bootstrap, "t") as consumer:
            assert next(iter(consumer)).value == b"x"
            names = [family.measure.name for family in (*producer.metrics, *consumer.metrics)]
            return sent, number(consumer, "fetched_records_total", "t"), names

    async with FakeCluster() as cluster:
        cluster.create_topic("t")
        sent, fetched, names = await asyncio.to_thread(program, cluster.bootstrap)
    assert sent == fetched == 1
    assert {*names, "raftlog_client_assigned_partitions"} == {measure.name for measure in ALL_OF_CLIENTS}


# --- prometheus_client ------------------------------------------------------------------------------------------------


def shown(registry: CollectorRegistry) -> dict[tuple[str, str], float]:
    """(series, client) → value."""
    return {
        (sample.name, sample.labels["client"]): sample.value
        for family in parse_text(generate_latest(registry).decode())
        for sample in family.samples
        if "le" not in sample.labels
    }


RECORDS = "raftlog_client_acknowledged_records_total"


async def test_prometheus_shows_each_client_by_its_name_and_each_metric_once(cluster: FakeCluster) -> None:
    cluster.create_topic("t")
    registry = CollectorRegistry()
    collector = PrometheusCollector(registry)
    assert shown(registry) == {}
    async with Producer(cluster.bootstrap) as one, Producer(cluster.bootstrap) as other:
        collector.add(one, "one")
        collector.add(one, "one")
        collector.add(other, "other")
        with pytest.raises(InvalidRequest, match="another client is exported as 'one'"):
            collector.add(other, "one")
        one.send("t", b"x")
        await one.flush()
        on_the_loop, on_a_thread = shown(registry), await asyncio.to_thread(shown, registry)
        assert on_the_loop == on_a_thread
        assert on_the_loop[RECORDS, "one"] == on_the_loop["raftlog_client_batch_records_count", "one"] == 1
        assert (RECORDS, "other") not in on_the_loop and ("raftlog_client_buffered_bytes", "other") in on_the_loop
        assert generate_latest(registry).count(b"# TYPE raftlog_client_buffered_bytes ") == 1
        collector.remove("one")
        assert {client for _, client in shown(registry)} == {"other"}


class Client:
    """A client with no numbers but one."""

    metrics: Sequence[Family] = (Family.of(ALL_OF_CLIENTS[0], 7),)


def test_a_client_that_is_gone_is_shown_no_longer_and_its_name_is_free() -> None:
    registry = CollectorRegistry()
    collector = PrometheusCollector(registry)
    client: Client | None = Client()
    assert client is not None
    collector.add(client, "a")
    assert shown(registry) == {(ALL_OF_CLIENTS[0].name, "a"): 7}
    client = None
    gc.collect()
    again = Client()
    collector.add(again, "a")
    assert shown(registry) == {(ALL_OF_CLIENTS[0].name, "a"): 7}
    del again
    gc.collect()
    assert shown(registry) == {}


async def test_a_loop_that_is_held_up_delays_a_scrape_by_a_bounded_time(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftlog.client.prometheus.LOOP_SECONDS", 0.01)
    registry = CollectorRegistry()
    collector = PrometheusCollector(registry)
    client = Client()
    collector.add(client, "a")
    scrape = asyncio.get_running_loop().run_in_executor(None, shown, registry)
    while not caplog.records:
        pass  # the loop is held up
    assert await scrape == {}
    assert "the metrics of client a are missing" in caplog.text
    assert await asyncio.to_thread(shown, registry)
