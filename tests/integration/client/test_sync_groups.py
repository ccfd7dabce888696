"""The blocking client as a member of a group: callbacks in its caller's thread, and no record committed before it was
handed out.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from raftlog.api.groups import GroupPartition
from raftlog.cli.nodes.local_cluster import LocalCluster
from raftlog.client import ConsumerRecord
from raftlog.errors import InvalidRequest, RaftlogError
from raftlog.sync import Admin, Consumer, GroupConsumer, Producer
from tests.support.clusters.cluster import PATIENCE_S, running_cluster

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with running_cluster(node_count=1) as running:
        with Admin(running.bootstrap) as admin, Producer(running.bootstrap) as producer:
            for topic in ("seen", "told", "halves", "held"):
                admin.create_topic(topic, partitions=2)
                for partition in range(2):
                    producer.send_many(topic, [b"%d" % number for number in range(200)], partition=partition)
            producer.flush()
        yield running


def offsets_of(cluster: LocalCluster, group: str) -> dict[int, int]:
    with Admin(cluster.bootstrap) as admin:
        return {one.group_partition.partition: one.offset or 0 for one in admin.group_offsets(group)}


def test_records_that_were_not_handed_out_are_not_committed(cluster: LocalCluster) -> None:
    """S8: iterating fetches ahead of the program; commits, and the one at the end, stop before that."""
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


def test_callbacks_run_in_the_callers_thread_and_may_call_the_consumer(cluster: LocalCluster) -> None:
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


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_paused_partitions_keep_their_positions(cluster: LocalCluster) -> None:
    with Consumer.subscribe(
        cluster.bootstrap, "holders", ["held"], auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        first = list(itertools.islice(consumer, 10))
        held = [one for one in consumer.assignment if one.partition == first[-1].partition]
        ends = one_end(first)
        consumer.pause(held)
        assert consumer.paused == held and len(consumer.assignment) == 2
        others = list(itertools.islice(consumer, 200 - ends.get(1 - held[0].partition, 0)))
        assert {record.partition for record in others} == {1 - held[0].partition}
        assert consumer.poll(timeout=0.1) == []
        assert consumer.positions[held[0]] == ends[held[0].partition]
        consumer.resume(held)
        rest = list(itertools.islice(consumer, 400 - len(first) - len(others)))
        everything = sorted((record.partition, record.offset) for record in [*first, *others, *rest])
        assert everything == [(partition, offset) for partition in range(2) for offset in range(200)]
        with pytest.raises(InvalidRequest, match="not assigned"):
            consumer.pause([GroupPartition("held", 9)])


def test_a_seek_may_name_an_offset_or_a_time(cluster: LocalCluster) -> None:
    with Consumer.subscribe(cluster.bootstrap, "seekers", ["held"], auto_offset_reset="latest") as consumer:
        assert consumer.poll(timeout=0.1) == []
        until(lambda: consumer.poll(timeout=0.05) == [] and len(consumer.assignment) == 2)
        for start, offset in (("earliest", 0), ("latest", 200), ("@0", 0), ("@99999999999999", 200), (7, 7)):
            consumer.seek("held", 1, start)
            assert {one.partition: at for one, at in consumer.positions.items()}[1] == offset
        assert consumer.poll(1)[0].offset == 7
        with pytest.raises(InvalidRequest):
            consumer.seek("held", 1, "soon")


def test_records_that_an_exception_left_unprocessed_are_not_committed(cluster: LocalCluster) -> None:
    """Delivery is at least once, also if a program ends in the middle of a batch."""
    settings = {"auto_offset_reset": "earliest", "auto_commit_interval_ms": 60_000}
    with pytest.raises(ZeroDivisionError), Consumer.subscribe(cluster.bootstrap, "polls", ["held"], **settings) as one:
        assert len(one.poll(50)) == 50
        assert one.poll(50)
        raise ZeroDivisionError
    assert sum(offsets_of(cluster, "polls").values()) == 50
    with pytest.raises(ZeroDivisionError), Consumer.subscribe(cluster.bootstrap, "loops", ["held"], **settings) as one:
        for number, _ in enumerate(one):
            if number == 60:
                raise ZeroDivisionError
    assert sum(offsets_of(cluster, "loops").values()) == 60


def test_the_callback_of_a_commit_without_waiting_runs_in_the_next_call(cluster: LocalCluster) -> None:
    told: list[tuple[RaftlogError | None, str]] = []

    def done(error: RaftlogError | None) -> None:
        told.append((error, threading.current_thread().name))

    with Consumer.subscribe(cluster.bootstrap, "soon", ["held"], auto_offset_reset="earliest") as consumer:
        polled = consumer.poll(30)
        consumer.commit_soon(done=done)
        until(lambda: consumer.poll(0) == [] and bool(told))
        assert told == [(None, threading.current_thread().name)]
        assert sum(offsets_of(cluster, "soon").values()) == len(polled)
        consumer.commit_soon({GroupPartition("held", 9, consumer.assignment[0].topic_id): 1}, done)
    assert len(told) == 2 and isinstance(told[1][0], InvalidRequest)


def test_a_hanging_program_leaves_and_gets_on_lost_when_it_polls_again(cluster: LocalCluster) -> None:
    """KIP-62: its heartbeats are sent by another thread, and do not show whether the program hangs."""
    told: list[str] = []
    with (
        Admin(cluster.bootstrap) as admin,
        Consumer.subscribe(
            cluster.bootstrap,
            "hangs",
            ["held"],
            auto_offset_reset="earliest",
            max_poll_interval_ms=1_000,
            heartbeat_interval_ms=50,
            on_assigned=lambda partitions: told.append(f"assigned {len(partitions)}"),
            on_lost=lambda partitions: told.append(f"lost {len(partitions)}"),
        ) as consumer,
    ):
        handed_out = consumer.poll(20)
        until(lambda: admin.describe_group("hangs").state == "Empty")
        with pytest.raises(InvalidRequest, match="max_poll_interval"):
            consumer.commit()
        again = list(itertools.islice(consumer, 20))
        assert told == ["assigned 2", "lost 2", "assigned 2"]
        assert {(r.partition, r.offset) for r in handed_out} <= {
            (r.partition, r.offset) for r in again
        } or not offsets_of(cluster, "hangs")
