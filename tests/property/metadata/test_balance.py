"""Plans for any cluster: balancing never makes it worse, respects racks and ends when it is done; draining empties
brokers.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.rules.balance import PlannedMove, balance, drain
from raftlog.errors import InvalidRequest
from raftlog.model import (
    BrokerId,
    BrokerRecord,
    DirectoryId,
    Endpoint,
    Incarnation,
    LeaderEpoch,
    PartitionEpoch,
    PartitionRecord,
    TopicId,
    TopicPartition,
)

SEEDS = st.integers(0, 2**32 - 1)


def broker(number: int, rack: str = "", *, fenced: bool = False) -> BrokerRecord:
    where = Endpoint("a", number)
    life = (BrokerId(number), Incarnation(1), DirectoryId(bytes(16)), 1)
    return BrokerRecord(*life, where, where, rack, fenced, 1)


def partition(number: int, *replicas: int) -> PartitionRecord:
    placed = tuple(map(BrokerId, replicas))
    epochs = (Incarnation(1), LeaderEpoch(0), PartitionEpoch(0))
    isr = tuple(sorted(placed))
    return PartitionRecord(TopicPartition(TopicId(bytes(16)), number), placed, placed[0], *epochs, isr, isr, 1)


def random_cluster(seed: int) -> tuple[list[BrokerRecord], list[PartitionRecord]]:
    random = Random(seed)
    racks = random.choice((1, 2, 3, 4))
    count = random.randint(1, 8)
    brokers = [broker(n, f"r{random.randrange(racks)}", fenced=random.random() < 0.1) for n in range(count)]
    laden = random.sample(range(count), random.randint(1, count))
    partitions = []
    for number in range(random.randint(0, 30)):
        crowd = laden if random.random() < 0.6 else range(count)
        partitions.append(partition(number, *random.sample(crowd, random.randint(1, min(3, len(crowd))))))
    return brokers, partitions


def carried_out(partitions: list[PartitionRecord], moves: list[PlannedMove]) -> list[PartitionRecord]:
    targets = {move.topic_partition: move for move in moves}
    assert len(targets) == len(moves)
    after = []
    for record in partitions:
        move = targets.get(record.topic_partition)
        if move is not None:
            assert move.replicas == record.replicas != move.target
            assert len(set(move.target)) == len(record.replicas)
            record = msgspec.structs.replace(record, replicas=move.target)
        after.append(record)
    return after


def measures(brokers: list[BrokerRecord], partitions: list[PartitionRecord]) -> dict[str, int]:
    """Smaller is better."""
    live = [b.broker_id for b in brokers if not b.fenced]
    racks = {b.broker_id: b.rack for b in brokers}
    held: Counter[BrokerId] = Counter(replica for record in partitions for replica in record.replicas)
    led = Counter(record.replicas[0] for record in partitions)
    return {
        "racks": sum(len(r.replicas) - len({racks[replica] for replica in r.replicas}) for r in partitions),
        "replicas": sum(held[b] ** 2 for b in live),
    } | ({"worst": max(held[b] for b in live), "leaders": max(led[b] for b in live)} if live else {})


@settings(max_examples=300, deadline=None)
@given(SEEDS)
def test_balancing_never_worsens_and_a_balanced_cluster_is_left_alone(seed: int) -> None:
    brokers, partitions = random_cluster(seed)
    moves = balance(brokers, partitions)
    after = carried_out(partitions, moves)
    was, now = measures(brokers, partitions), measures(brokers, after)
    assert now["racks"] <= was["racks"]
    if now["racks"] == was["racks"]:
        assert now["replicas"] <= was["replicas"]
    live = {b.broker_id for b in brokers if not b.fenced}
    assert all(adding in live for move in moves for adding in move.adding)
    for record, then in zip(partitions, after, strict=True):
        assert set(record.replicas) - live == set(then.replicas) - live, "what is on fenced brokers stays"
        racks = {b.broker_id: b.rack for b in brokers}
        assert len({racks[r] for r in then.replicas}) >= len({racks[r] for r in record.replicas})
    assert balance(brokers, after) == []


@settings(max_examples=150, deadline=None)
@given(SEEDS)
def test_without_racks_replicas_and_leaders_end_up_even(seed: int) -> None:
    brokers, partitions = random_cluster(seed)
    brokers = [replace(b, rack="", fenced=False) for b in brokers]
    after = carried_out(partitions, balance(brokers, partitions))
    held = Counter({b.broker_id: 0 for b in brokers})
    held.update(replica for record in after for replica in record.replicas)
    assert max(held.values()) - min(held.values()) <= 1
    before = Counter(replica for record in partitions for replica in record.replicas)
    moved = sum(len(set(a.replicas) - set(r.replicas)) for r, a in zip(partitions, after, strict=True))
    ceilings = -(-sum(before.values()) // len(brokers))
    assert moved <= sum(max(0, count - ceilings + 1) for count in before.values()), "only what is too much moves"


@settings(max_examples=200, deadline=None)
@given(SEEDS, st.integers(0, 7))
def test_draining_empties_a_broker_and_moves_nothing_else(seed: int, leaving: int) -> None:
    brokers, partitions = random_cluster(seed)
    gone = BrokerId(leaving % len(brokers))
    room = [b for b in brokers if not b.fenced and b.broker_id != gone]
    try:
        moves = drain(brokers, partitions, [gone])
    except InvalidRequest:
        assert any(gone in r.replicas and len({*r.replicas, *(b.broker_id for b in room)} - {gone}) < len(r.replicas)
                   for r in partitions)  # fmt: skip
        return
    after = carried_out(partitions, moves)
    assert all(gone not in record.replicas for record in after)
    for move in moves:
        assert gone in move.replicas
        assert set(move.replicas) - set(move.target) == {gone} and len(move.adding) == 1
        assert move.target[0] == move.replicas[0] or move.replicas[0] == gone, "who leads and stays goes on leading"


def test_leaders_are_moved_along_a_chain() -> None:
    """0 has too many, 2 too few, and they share no partition."""
    brokers = [broker(n) for n in range(3)]
    partitions = [partition(n, 0, 1) for n in range(3)] + [partition(3 + n, 1, 2) for n in range(2)]
    partitions += [partition(5, 1, 0)]
    leaders = Counter(record.replicas[0] for record in carried_out(partitions, balance(brokers, partitions)))
    assert leaders == {0: 2, 1: 2, 2: 2}


def test_a_rack_that_holds_a_partition_twice_gives_one_replica_to_an_empty_rack() -> None:
    brokers = [broker(0, "a"), broker(1, "a"), broker(2, "b"), broker(3, "b")]
    (move,) = balance(brokers, [partition(0, 0, 1)])
    assert move.adding in ((2,), (3,))


def test_partitions_under_reassignment_count_at_their_targets_and_are_left_alone() -> None:
    brokers = [broker(n) for n in range(2)]
    going = [msgspec.structs.replace(partition(n, 0), target_replicas=(BrokerId(1),)) for n in range(2)]
    assert balance(brokers, [*going, partition(2, 0), partition(3, 0)]) == []
    with pytest.raises(InvalidRequest, match="being moved"):
        drain(brokers, going, [BrokerId(1)])


def test_a_drain_spreads_leaders_and_prefers_new_racks() -> None:
    brokers = [broker(0, "a"), broker(1, "b"), broker(2, "a"), broker(3, "c"), broker(4, "c")]
    partitions = [partition(n, 0, 1, 3) for n in range(4)]
    after = carried_out(partitions, drain(brokers, partitions, [BrokerId(0)]))
    assert {frozenset(record.replicas) for record in after} == {frozenset((1, 2, 3))}
    led = Counter(record.replicas[0] for record in after)
    assert sorted(led[BrokerId(number)] for number in (1, 2, 3)) == [1, 1, 2]


def test_partitions_that_cannot_be_drained_are_named() -> None:
    with pytest.raises(InvalidRequest, match="broker 7 is not registered"):
        drain([broker(0)], [], [BrokerId(7)])
    with pytest.raises(InvalidRequest, match="only 1 live brokers would stay"):
        drain([broker(0), broker(1)], [partition(0, 0, 1)], [BrokerId(0)])
