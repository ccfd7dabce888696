"""When a node may be stopped: partitions, the quorum, moves, disks."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from metadata.records.events import BrokerChanged, PartitionChanged, TopicChanged
from metadata.view import ClusterView
from raftlog.broker.roll_check import LAG_MAX, LINES_MAX, roll_reasons
from raftlog.model import (
    NO_BROKER,
    BrokerId,
    BrokerRecord,
    DirectoryId,
    Endpoint,
    Incarnation,
    LeaderEpoch,
    PartitionEpoch,
    PartitionRecord,
    QuorumStatus,
    TopicId,
    TopicPartition,
    TopicRecord,
)

TOPIC = TopicId(b"t" * 16)
STATUS = QuorumStatus(BrokerId(0), BrokerId(0), 1, 50, 50, 50, (BrokerId(0), BrokerId(1), BrokerId(2)),
                      {BrokerId(1): 50, BrokerId(2): 49})  # fmt: skip


def broker(number: int, *, fenced: bool = False, short: bool = False) -> BrokerChanged:
    where = Endpoint("h", 1)
    directory = DirectoryId(bytes([number] * 16))
    return BrokerChanged(
        BrokerRecord(BrokerId(number), Incarnation(number), directory, 1, where, where, "", fenced, 1, short)
    )


def ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, numbers))


PARTITION = PartitionRecord(
    TopicPartition(TOPIC, 0), ids(0, 1, 2), BrokerId(0), Incarnation(0), LeaderEpoch(1), PartitionEpoch(1),
    ids(0, 1, 2), ids(0, 1, 2), 2,
)  # fmt: skip


def view_of(*partitions: PartitionRecord, brokers: tuple[BrokerChanged, ...] = ()) -> ClusterView:
    view = ClusterView()
    count = max(len(partitions), 1)
    events = [
        *map(broker, range(3)), *brokers, TopicChanged(TopicRecord(TOPIC, "orders", count, 3)),
        *(PartitionChanged(record, ()) for record in partitions or (PARTITION,)),
    ]  # fmt: skip
    view.on_events(1, events)
    return view


async def reasons(view: ClusterView, node: int = 0, status: QuorumStatus = STATUS) -> list[str]:
    return await roll_reasons(view, status, BrokerId(node))


async def test_a_healthy_cluster_can_do_without_any_node() -> None:
    for node in range(3):
        assert await reasons(view_of(), node) == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"isr": ids(0, 1)}, "would have 1 of 2 required in-sync replicas, so acks=all would be refused"),
        ({"isr": ids(0)}, "has no other live in-sync replica than the one on node 0"),
        ({"isr": ids(0, 1, 2), "not_eligible": ids(1)}, "would have 1 of 2 required"),
        ({"replicas": ids(0), "isr": ids(0), "min_insync_replicas": 1}, "has no other replica than the one on node 0"),
        ({"leader": NO_BROKER, "isr": ids(1)}, "has no leader, and may need node 0"),
        ({"target_replicas": ids(0, 1)}, "is being moved, and node 0 takes part"),
    ],
)
async def test_a_partition_that_needs_the_node_is_named(changes: dict[str, object], reason: str) -> None:
    record = msgspec.structs.replace(PARTITION, **changes)
    (found,) = await reasons(view_of(record))
    assert found.startswith("orders/0 ") and reason in found


@pytest.mark.parametrize(
    "changes",
    [
        {"replicas": ids(1, 2), "isr": ids(1), "leader": BrokerId(1)},
        {"isr": ids(1, 2), "leader": BrokerId(1)},
        {"isr": ids(1), "leader": BrokerId(1)},
        {"isr": ids(0, 1), "min_insync_replicas": 1},
    ],
    ids=["not there", "catching up", "below the minimum without it", "enough others"],
)
async def test_a_partition_that_does_not_need_the_node_is_no_reason(changes: dict[str, object]) -> None:
    assert await reasons(view_of(msgspec.structs.replace(PARTITION, **changes))) == []


async def test_a_fenced_replica_counts_for_nothing() -> None:
    found = await reasons(view_of(brokers=(broker(2, fenced=True),)))
    assert any("would have 1 of 2 required" in line for line in found)
    assert "the metadata quorum would have 1 of 3 voters, and needs 2: node 2 is down or behind" in found


async def test_many_partitions_are_counted() -> None:
    records = [
        msgspec.structs.replace(PARTITION, topic_partition=TopicPartition(TOPIC, number), isr=ids(0))
        for number in range(LINES_MAX + 5)
    ]
    found = await reasons(view_of(*records))
    assert len(found) == LINES_MAX + 1 and found[-1] == "... and 5 more partitions like the last"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"leader": NO_BROKER}, "the metadata quorum has no leader"),
        ({"node_id": BrokerId(1)}, "the leader of the metadata quorum, node 0, does not answer"),
        ({"match_index": {BrokerId(1): 50}}, "would have 1 of 3 voters, and needs 2: node 2 is down or behind"),
        ({"forgetful": ids(2)}, "would have 1 of 3 voters, and needs 2: node 2 is down or behind"),
        ({"voters": ids(0)}, "would have 0 of 1 voters, and needs 1"),
        ({"last_index": 50 + LAG_MAX}, "would have 1 of 3 voters, and needs 2: node 2 is down or behind"),
    ],
)
async def test_a_quorum_that_needs_the_node_is_a_reason(changes: dict[str, object], reason: str) -> None:
    status = dataclasses.replace(STATUS, **changes)  # type: ignore[arg-type]
    node = 1 if "last_index" in changes else 0
    if "last_index" in changes:
        status = dataclasses.replace(status, match_index={BrokerId(1): 50, BrokerId(2): 49})
    (found,) = await reasons(view_of(), node, status)
    assert reason in found


async def test_an_observer_is_not_needed_by_the_quorum() -> None:
    view = view_of(brokers=(broker(3),))
    assert await reasons(view, 3, dataclasses.replace(STATUS, match_index={})) == []


async def test_a_node_that_refuses_batches_cannot_take_over() -> None:
    view = view_of(brokers=(broker(1, short=True),))
    (found,) = await reasons(view)
    assert found.startswith("node 1 is short of room on its disk")
    assert await reasons(view, 1) == []
