"""The blocking client as a member of a group: callbacks in its caller's thread, and no record committed unseen."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator

import pytest

from raftlog.cli.local_cluster import LocalCluster
from raftlog.client import ConsumerRecord
from raftlog.client.group_api import GroupPartition
from raftlog.errors import InvalidRequest
from raftlog.sync import Admin, Consumer, GroupConsumer, Producer
from tests.support.cluster import running_cluster

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with running_cluster(node_count=1) as running:
        with Admin(running.bootstrap) as admin, Producer(running.bootstrap) as producer:
            for topic in ("seen", "told", "halves"):
                admin.create_topic(topic, partitions=2)
                for partition in range(2):
                    producer.send_many(topic, [b"%d" % number for number in range(200)], partition=partition)
            producer.flush()
        yield running


def offsets_of(cluster: LocalCluster, group: str) -> dict[int, int]:
    with Admin(cluster.bootstrap) as admin:
        return {one.group_partition.partition: one.offset or 0 for one in admin.group_offsets(group)}


def test_what_was_not_handed_out_is_not_committed(cluster: LocalCluster) -> None:
    """S8: iterating fetches ahead of the program; commits and the end stop before that."""
    with Consumer.subscribe(cluster.bootstrap, "readers", ["seen"], auto_offset_reset="earliest") as consumer:
        first = list(itertools.islice(consumer, 150))
        assert sum(one_end(first).values()) == 150
        assert {p.partition: offset for p, offset in consumer.positions.items() if offset} == one_end(first)
        consumer.commit()
        assert {p: o for p, o in offsets_of(cluster, "readers").items() if o} == one_end(first)
        assert sum(consumer.lag.values()) == 400 - 150
        more = list(itertools.islice(consumer, 10))
        assert {p.partition: o for p, o in consumer.committed().items() if o} == one_end(first)
    assert {p: o for p, o in offsets_of(cluster, "readers").items() if o} == one_end([*first, *more])
    with Consumer.subscribe(cluster.bootstrap, "readers", ["seen"]) as consumer:
        rest = list(itertools.islice(consumer, 400 - 160))
    everything = sorted((record.partition, record.offset) for record in [*first, *more, *rest])
    assert everything == [(partition, offset) for partition in range(2) for offset in range(200)]


def one_end(records: list[ConsumerRecord]) -> dict[int, int]:
    """Partition → the offset after the last of these."""
    return {record.partition: record.offset + 1 for record in records}


def test_callbacks_run_in_the_callers_thread_and_may_call(cluster: LocalCluster) -> None:
    told: list[tuple[str, int, str]] = []
    consumer: GroupConsumer

    def assigned(partitions: list[GroupPartition]) -> None:
        told.append(("assigned", len(partitions), threading.current_thread().name))
        assert consumer.assignment == partitions

    def revoked(partitions: list[GroupPartition]) -> None:
        told.append(("revoked", len(partitions), threading.current_thread().name))
        consumer.commit()

    consumer = Consumer.subscribe(
        cluster.bootstrap,
        "callers",
        ["told"],
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        on_assigned=assigned,
        on_revoked=revoked,
    )
    polled = consumer.poll(50)
    own = threading.current_thread().name
    assert polled and told == [("assigned", 2, own)]
    consumer.seek("told", 0, 7)
    consumer.close()
    consumer.close()
    assert told[1:] == [("revoked", 2, own)]
    assert offsets_of(cluster, "callers")[0] == 7

    def fails(partitions: list[GroupPartition]) -> None:
        raise ValueError("mine")

    failing = Consumer.subscribe(cluster.bootstrap, "fails", ["told"], on_assigned=fails)
    with failing, pytest.raises(ValueError, match="mine"):
        failing.poll(timeout=30.0)
    with pytest.raises(InvalidRequest):
        GroupConsumer(cluster.bootstrap, "nothing")


def test_two_members_in_two_threads_share_the_work(cluster: LocalCluster) -> None:
    found: list[tuple[int, int]] = []
    lock, all_found = threading.Lock(), threading.Event()

    def read() -> None:
        with Consumer.subscribe(
            cluster.bootstrap, "halves", ["halves"], auto_offset_reset="earliest", heartbeat_interval_ms=50
        ) as consumer:
            while not all_found.is_set():
                records = consumer.poll(20, timeout=0.1)
                with lock:
                    found.extend((record.partition, record.offset) for record in records)
                    if len(set(found)) == 400:
                        all_found.set()

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert all_found.is_set()
    assert len(found) == len(set(found)), "a rebalance commits what was processed before it moves"
