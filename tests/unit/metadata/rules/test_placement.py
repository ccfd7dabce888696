"""Placement: different brokers, different racks, leaders and replicas evenly spread, the same every time."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.rules.placement import default_replication_factor, line_up, place
from raftlog.errors import InvalidRequest, RetriableError
from raftlog.model import BrokerId, BrokerRecord, DirectoryId, Endpoint, Incarnation


def broker(number: int, rack: str = "", *, fenced: bool = False) -> BrokerRecord:
    return BrokerRecord(
        BrokerId(number),
        Incarnation(1),
        DirectoryId(bytes(16)),
        1,
        Endpoint("a", 1),
        Endpoint("d", 1),
        rack,
        fenced,
        1,
    )


def racked(*sizes: int) -> list[BrokerRecord]:
    racks = [f"rack{rack}" for rack, size in enumerate(sizes) for _ in range(size)]
    return [broker(number, rack) for number, rack in enumerate(racks)]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(1, 60), st.integers(1, 4), st.integers(0, 1000))
def test_the_invariants_of_placement(sizes: list[int], partitions: int, factor: int, start: int) -> None:
    brokers = racked(*sizes)
    factor = min(factor, len(brokers))
    placed = place(brokers, partitions, factor, start=start)
    assert placed == place(list(reversed(brokers)), partitions, factor, start=start)
    assert len(placed) == partitions
    rack_of = {broker.broker_id: broker.rack for broker in brokers}
    for replicas in placed:
        assert len(set(replicas)) == len(replicas) == factor
        assert len({rack_of[replica] for replica in replicas}) == min(factor, len(sizes))
    leaders = Counter(replicas[0] for replicas in placed)
    counts = [leaders[broker.broker_id] for broker in brokers]
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize(("sizes", "factor"), [((1, 1, 1), 3), ((2, 2, 2), 3), ((3, 3), 2), ((5,), 3), ((4, 4, 4), 2)])
def test_equal_racks_get_equal_shares(sizes: tuple[int, ...], factor: int) -> None:
    brokers = racked(*sizes)
    placed = place(brokers, 10 * len(brokers), factor, start=3)
    load = Counter(replica for replicas in placed for replica in replicas)
    assert max(load.values()) - min(load.values()) <= 2


def test_the_leaderships_of_a_dead_broker_go_to_many() -> None:
    placed = place(racked(6), 60, 3, start=0)
    heirs = Counter(replicas[1] for replicas in placed if replicas[0] == 0)
    assert len(heirs) >= 4
    assert max(heirs.values()) <= 4


def test_adjacent_brokers_are_in_different_racks() -> None:
    racks = [broker.rack for broker in line_up(racked(2, 2, 2))]
    assert all(one != two for one, two in itertools.pairwise(racks))


def test_topics_of_one_partition_spread_by_their_start() -> None:
    leaders = {place(racked(1, 1, 1), 1, 1, start=start)[0][0] for start in range(3)}
    assert leaders == {0, 1, 2}


def test_loaded_brokers_get_fewer_followers() -> None:
    placed = place(racked(4), 40, 2, start=0, replica_counts={BrokerId(3): 1000})
    followers = Counter(replicas[1] for replicas in placed)
    assert followers[BrokerId(3)] == 0


def test_fenced_brokers_are_the_last_choice_and_never_lead() -> None:
    brokers = [broker(0), broker(1), broker(2, fenced=True), broker(3, fenced=True)]
    assert all(set(replicas) == {0, 1} for replicas in place(brokers, 8, 2, start=0))
    three = place(brokers, 8, 3, start=0)
    assert all(replicas[0] in (0, 1) and replicas[2] in (2, 3) for replicas in three)


def test_impossible_placements_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="replication factor 3 is more than the 2 brokers"):
        place(racked(2), 1, 3, start=0)
    for partitions, factor in ((0, 1), (1, 0)):
        with pytest.raises(InvalidRequest):
            place(racked(2), partitions, factor, start=0)
    with pytest.raises(RetriableError, match="no broker is live"):
        place([broker(0, fenced=True)], 1, 1, start=0)


def test_three_replicas_or_all_brokers_if_there_are_fewer() -> None:
    assert [default_replication_factor(racked(n)) for n in (1, 2, 3, 9)] == [1, 2, 3, 3]
    assert default_replication_factor([]) == 1
