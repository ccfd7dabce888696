"""Positions move by confirmed delivery only (S8): the schedules that the rules of HTTP consumers exclude."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raftlog.broker.instances.positions import Delivered, Positions
from raftlog.model import TopicId, TopicPartition

TOPIC = TopicId(b"topic-number-001")
ONE, TWO = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
GRANTED = 7


def delivered(start: int, end: int, partition: TopicPartition = ONE, granted: int = GRANTED) -> Delivered:
    return Delivered(partition.topic_id, partition.partition, granted, start, end)


def begun(offset: int = 0) -> Positions:
    positions = Positions()
    positions.grant({ONE: GRANTED})
    positions.start(ONE, GRANTED, offset)
    return positions


def test_what_was_cut_comes_again_and_nothing_is_committed() -> None:
    """Schedule V5a."""
    positions = begun()
    lease = positions.lend()
    positions.settle(lease, ())
    assert positions.present[ONE].offset == 0
    assert positions.delivered == {}


def test_a_later_range_does_not_skip_one_that_was_cut() -> None:
    """Schedule V5b: [0, 1) is cut, [1, 2) arrives."""
    positions = begun()
    positions.settle(positions.lend(), ())
    positions.settle(positions.lend(), [delivered(1, 2)])
    assert positions.delivered == {} and positions.present[ONE].offset == 0


def test_a_range_that_was_not_confirmed_in_time_may_still_be() -> None:
    """Schedule V5c: nothing hangs, and nothing is taken twice."""
    positions = begun()
    late = positions.lend()
    positions.settle(late, ())
    lease = positions.lend()
    positions.settle(late, [delivered(0, 2)])
    assert positions.is_lent, "the late confirmation ends no other lease"
    positions.settle(lease, [delivered(0, 3)])
    assert positions.delivered == {ONE: 2}, "its own range begins before the position"


def test_a_partition_that_comes_back_begins_anew() -> None:
    """Another member may have committed meanwhile."""
    positions = begun()
    positions.settle(positions.lend(), [delivered(0, 5)])
    positions.grant({})
    positions.grant({ONE: GRANTED + 2})
    assert positions.missing == {ONE: GRANTED + 2} and positions.delivered == {}
    positions.start(ONE, GRANTED, 9)
    assert positions.missing, "a start for the grant before is ignored"
    positions.start(ONE, GRANTED + 2, 3)
    positions.settle(positions.lend(), [delivered(5, 6)])
    assert positions.delivered == {} and positions.present[ONE].offset == 3


def test_a_seek_leaves_nothing_to_commit() -> None:
    positions = begun()
    positions.settle(positions.lend(), [delivered(0, 5)])
    assert positions.seek(ONE, 2) and positions.delivered == {}
    assert not positions.seek(ONE, 9, expected=5), "the position was moved meanwhile"
    assert positions.seek(ONE, 9, expected=2)
    assert not positions.seek(TWO, 1), "a partition of another member"


def test_an_empty_range_is_no_delivery() -> None:
    positions = begun()
    positions.settle(positions.lend(), [delivered(0, 0)])
    assert positions.delivered == {}


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6), st.integers(0, 6), st.booleans()), max_size=40))
def test_nothing_is_skipped_whatever_arrives(steps: list[tuple[bool, int, int, bool]]) -> None:
    """The client's records are those of ranges that were confirmed; each begins where the one before ended."""
    positions = begun()
    got: set[int] = set()
    for is_read, start, length, arrives in steps:
        if is_read:
            lease, first = positions.lend(), positions.present[ONE].offset
            ranges = [delivered(first, first + length)] if arrives else []
            got |= set(range(first, first + length)) if arrives else set()
            positions.settle(lease, ranges)
        else:
            # A confirmation from another time: the client did get that range.
            got |= set(range(start, start + length))
            positions.settle(0, [delivered(start, start + length)])
        assert set(range(positions.delivered.get(ONE, 0))) <= got
