"""How long a node has known of leases."""

from __future__ import annotations

from metadata.view import LeasedPartition, LeasedRange, LeasesChanged, LeasesRemoved
from raftlog.broker.changes.lease_ages import LeaseAges
from raftlog.model import TopicId, TopicPartition
from tests.support.partitions.manual import ManualClock

PLACE = TopicPartition(TopicId(bytes(16)), 0)


def record(*ranges: LeasedRange) -> LeasedPartition:
    return LeasedPartition("g", PLACE, ranges[0].start, 100, ranges)


def held(lease: int, *, start: int = 0, renewed: int = 1, lease_ms: int = 10_000) -> LeasedRange:
    return LeasedRange(start, start + 10, lease, lease_ms, renewed)


def test_a_lease_is_over_after_its_time_and_others_keep_theirs() -> None:
    clock = ManualClock()
    ages = LeaseAges(clock)
    first, second = held(1), held(2, start=10)
    ages.on_events(1, [LeasesChanged(record(first))])
    clock.advance(4)
    both = record(first, second)
    ages.on_events(2, [LeasesChanged(both)])
    assert (ages.left_s(both, first), ages.left_s(both, second)) == (6, 10)
    clock.advance(6)
    assert (ages.left_s(both, first), ages.left_s(both, second)) == (0, 4)


def test_leases_that_were_there_before_are_over_after_their_whole_time() -> None:
    clock = ManualClock()
    before = record(held(1))
    ages = LeaseAges(clock, [before])
    clock.advance(9)
    assert ages.left_s(before, before.ranges[0]) == 1
    clock.advance(1)
    assert ages.left_s(before, before.ranges[0]) == 0


def test_a_renewal_begins_anew_and_a_return_is_over_at_once() -> None:
    clock = ManualClock()
    ages = LeaseAges(clock)
    ages.on_events(1, [LeasesChanged(record(held(1)))])
    clock.advance(9)
    renewed = record(held(1, renewed=2))
    ages.on_events(2, [LeasesChanged(renewed)])
    assert ages.left_s(renewed, renewed.ranges[0]) == 10
    returned = record(held(1, renewed=3, lease_ms=0))
    ages.on_events(3, [LeasesChanged(returned)])
    assert ages.left_s(returned, returned.ranges[0]) == 0


def test_an_acknowledgement_renews_nothing_and_the_wall_clock_counts_nothing() -> None:
    clock = ManualClock()
    ages = LeaseAges(clock)
    ages.on_events(1, [LeasesChanged(record(held(1)))])
    clock.advance(9)
    clock.jump_wall(3_600_000)
    rest = record(LeasedRange(5, 10, 1, 10_000, 1))
    ages.on_events(2, [LeasesChanged(rest)])
    assert ages.left_s(rest, rest.ranges[0]) == 1
    ages.on_events(3, [LeasesRemoved("g", PLACE)])
    assert ages.left_s(rest, rest.ranges[0]) == 10, "a lease that this node does not know is not over"
