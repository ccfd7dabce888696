"""`/metrics` of a real cluster: the numbers are those of what happened."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse_text

from raftlog import Admin, Consumer, Producer
from raftlog.cli.nodes.local_cluster import LocalNode
from raftlog.metrics.catalogue import ALL
from tests.support.clusters.cluster import all_in_sync, eventually, node_api, running_cluster

pytestmark = pytest.mark.integration

RECORDS = 500

Found = Mapping[str, list[tuple[dict[str, str], float]]]


async def scrape(node: LocalNode) -> Found:
    """Name of a series → labels and values."""
    async with node_api(node) as api:
        answer = await api.get("/metrics")
    assert answer.status == 200, answer
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in parse_text(answer.body.decode()):
        found.setdefault(f"{family.name}_total" if family.type == "counter" else family.name, [])
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def total(found: Found, name: str, **labels: str) -> float:
    """The sum of the series with these labels."""
    return sum(value for its, value in found[name] if labels.items() <= its.items())


async def test_the_numbers_of_a_cluster_are_those_of_what_happened() -> None:
    with running_cluster() as cluster:
        async with Admin(cluster.bootstrap) as admin:
            await admin.create_topic("orders", 3)
            await all_in_sync(admin, "orders")
        async with Producer(cluster.bootstrap) as producer:
            for number in range(RECORDS):
                producer.send("orders", b"value %d" % number)
            await producer.flush()
        read = 0
        async with Consumer.subscribe(
            cluster.bootstrap, "readers", ["orders"], auto_offset_reset="earliest"
        ) as consumer:
            while read < RECORDS:
                read += len(await consumer.poll(timeout=1.0))
            await consumer.commit()

            async def look() -> list[Found] | None:
                nodes = [await scrape(node) for node in cluster.nodes]
                lag = sum(total(found, "raftlog_group_lag_records", group="readers") for found in nodes)
                behind = sum(total(found, "raftlog_replication_lag_records") for found in nodes)
                return nodes if lag == 0 and behind == 0 and all(one["raftlog_replicas"] for one in nodes) else None

            nodes = await eventually(look, "the group and the followers have everything")
        check_everywhere(nodes)
        check_topic(nodes)


def check_everywhere(nodes: list[Found]) -> None:
    for found in nodes:
        for measure in ALL:
            assert measure.name in found, measure.name
        assert total(found, "raftlog_ready") == 1
        assert total(found, "raftlog_brokers") == 3
        assert total(found, "raftlog_offline_partitions") == total(found, "raftlog_under_replicated_partitions") == 0
        assert total(found, "raftlog_replicas") >= 3
        assert total(found, "raftlog_fsync_duration_seconds_count") > 0
        assert total(found, "raftlog_group_commit_batches_count") > 0
        assert total(found, "raftlog_quorum_term") > 0
        assert total(found, "raftlog_thread_cpu_seconds_total", thread="loop") > 0
        assert total(found, "raftlog_disk_free_bytes") > 0


def check_topic(nodes: list[Found]) -> None:
    def everywhere(name: str, **labels: str) -> float:
        return sum(total(found, name, **labels) for found in nodes)

    assert everywhere("raftlog_topic_appended_records_total", topic="orders") == RECORDS
    appended = everywhere("raftlog_topic_appended_bytes_total", topic="orders")
    assert everywhere("raftlog_topic_replicated_bytes_total", topic="orders") == 2 * appended > 0
    assert everywhere("raftlog_topic_fetched_bytes_total", topic="orders") >= appended
    assert everywhere("raftlog_log_end_offset", topic="orders") == 3 * RECORDS
    assert everywhere("raftlog_high_watermark", topic="orders") >= RECORDS
    assert everywhere("raftlog_leaders") >= 3
    assert everywhere("raftlog_requests_total", kind="produce", outcome="success") >= 1
    assert everywhere("raftlog_requests_total", kind="commit_offsets", outcome="success") >= 1
    assert everywhere("raftlog_request_duration_seconds_count", kind="produce") == everywhere(
        "raftlog_requests_total", kind="produce"
    )
    lags = {
        (labels["topic"], labels["partition"])
        for found in nodes
        for labels, _ in found["raftlog_group_lag_records"]
        if labels["group"] == "readers"
    }
    assert lags <= {("orders", str(number)) for number in range(3)} and lags, "each partition at its leader only"
    assert sum(len(found["raftlog_quorum_lag_entries"]) > 0 for found in nodes) == 1, "the quorum's leader knows"
