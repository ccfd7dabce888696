"""The end of a micro-batch, its limits, and its split into tasks, compared with simpler models."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_source.reading import planning
from spark_source.reading.log_bounds import END_GRACE_S, KnownEnds, PartitionBounds, TopicBounds
from spark_source.reading.offsets import PartitionRange, SourceOffset, planned_ranges
from spark_source.reading.planning import TriggerGate, admit
from spark_source.reading.splitting import split

ONE = "1" * 32
BACKLOGS = st.dictionaries(st.integers(0, 20), st.integers(0, 10_000), max_size=12)


def picture(bounds: dict[int, tuple[int, int]]) -> dict[str, TopicBounds]:
    return {"t": TopicBounds("t", ONE, {number: PartitionBounds(*both) for number, both in bounds.items()})}


@given(BACKLOGS, st.integers(1, 5_000))
def test_a_limit_is_kept_and_no_partition_starves(backlogs: dict[int, int], limit: int) -> None:
    shares = admit(backlogs, limit)
    waiting = [key for key, backlog in backlogs.items() if backlog]
    assert sorted(shares) == sorted(waiting)
    assert all(1 <= shares[key] <= backlogs[key] for key in waiting)
    assert sum(shares.values()) == min(sum(backlogs.values()), max(limit, len(waiting)))


@given(BACKLOGS)
def test_without_a_limit_everything_is_read(backlogs: dict[int, int]) -> None:
    assert admit(backlogs, None) == {key: backlog for key, backlog in backlogs.items() if backlog}


def test_shares_follow_the_backlog() -> None:
    assert admit({"a": 900, "b": 100, "c": 0}, 100) == {"a": 89, "b": 11}


@given(st.dictionaries(st.integers(0, 5), st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1), st.data())
def test_micro_batches_read_every_offset_once(logs: dict[int, tuple[int, int]], data: st.DataObject) -> None:
    """Model: the set of all offsets. Whatever the limits, restarts and growth, the ranges add up to it."""
    ends = {number: start + size for number, (start, size) in logs.items()}
    bounds = {number: (start, ends[number]) for number, (start, _) in logs.items()}
    begins = {number: data.draw(st.integers(start, end)) for number, (start, end) in bounds.items()}
    at = planning.begin(picture(bounds), {"t": begins})
    seen: list[tuple[int, int]] = []
    for _ in range(200):
        limit = data.draw(st.one_of(st.none(), st.integers(1, 40)))
        following = planning.advance(at, picture(bounds), limit)
        if following is at:
            break
        following = SourceOffset.from_json(following.to_json())
        for one in planned_ranges(SourceOffset.from_json(at.to_json()), following):
            seen += [(one.partition, offset) for offset in range(one.start, one.end)]
        at = following
    wanted = [(number, offset) for number, end in ends.items() for offset in range(begins[number], end)]
    assert sorted(seen) == sorted(wanted)
    assert planning.backlog(at, picture(bounds)) == 0


def test_an_offset_stays_the_same_object_without_new_records() -> None:
    start = planning.begin(picture({0: (0, 5)}), {"t": {0: 5}})
    assert planning.advance(start, picture({0: (0, 5)}), None) is start
    assert planning.advance(start, picture({0: (2, 5)}), None) is start


def test_missing_records_are_skipped_if_that_is_permitted() -> None:
    """By the time of planning, `failOnDataLoss` has permitted it."""
    start = SourceOffset({"t": ONE}, {}, {"t": {0: 3, 1: 90}})
    now = picture({0: (10, 30), 1: (0, 50)})
    assert planning.backlog(start, now) == 20
    assert planning.advance(start, now, 5).ends == {"t": {0: 15, 1: 50}}


def test_the_gate_opens_first_then_for_enough_or_after_long() -> None:
    gate = TriggerGate(100, 1000)
    assert gate.opens(1, 0)
    assert not gate.opens(99, 999)
    assert gate.opens(100, 999)
    assert not gate.opens(99, 1998)
    assert gate.opens(99, 1999)
    assert not gate.opens(0, 10_000) and gate.opens(1, 10_000)
    assert TriggerGate(None, 1000).opens(0, 0)


def test_an_end_that_seems_to_move_back_is_doubted_for_a_while() -> None:
    known = KnownEnds()
    assert known.judge(ONE, 0, 100, 0.0) == 100
    assert known.judge(ONE, 0, 90, 1.0) == 100 and known.doubted()
    assert known.judge(ONE, 0, 101, 2.0) == 101 and not known.doubted()
    assert known.judge(ONE, 0, 95, 3.0) == 101
    assert known.judge(ONE, 0, 97, 3.0 + END_GRACE_S) == 97
    assert known.judge(ONE, 0, 97, 99.0) == 97 and not known.doubted()


def test_a_checkpoint_records_how_far_a_log_reached() -> None:
    known = KnownEnds()
    known.expect([(ONE, 0, 50)])
    assert known.judge(ONE, 0, 40, 0.0) == 50
    assert known.judge("2" * 32, 0, 40, 0.0) == 40
    known.forget_except(["2" * 32])
    assert not known.doubted()
    assert known.judge(ONE, 0, 40, 0.0) == 40


RANGES = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 500)), max_size=6)


@given(RANGES, st.one_of(st.none(), st.integers(1, 50)), st.one_of(st.none(), st.integers(1, 100)))
def test_pieces_cover_the_range_and_are_no_larger_than_requested(
    sizes: list[tuple[int, int]], least: int | None, most: int | None
) -> None:
    ranges = [PartitionRange("t", ONE, n, start, start + size) for n, (start, size) in enumerate(sizes)]
    pieces = split(ranges, least, most)
    for one in ranges:
        mine = [piece for piece in pieces if piece.partition == one.partition]
        assert [offset for piece in mine for offset in range(piece.start, piece.end)] == list(range(one.start, one.end))
        assert all(piece.size for piece in mine)
        assert not mine or max(piece.size for piece in mine) - min(piece.size for piece in mine) <= 1
    if most is not None:
        assert all(piece.size <= most for piece in pieces)
    if least is not None:
        assert len(pieces) >= min(least, sum(one.size for one in ranges))


def test_the_largest_range_is_split_first() -> None:
    small, large = PartitionRange("t", ONE, 0, 0, 10), PartitionRange("t", ONE, 1, 0, 90)
    pieces = split([small, large], 4, None)
    assert [(piece.partition, piece.size) for piece in pieces] == [(0, 10), (1, 30), (1, 30), (1, 30)]
    assert split([small, large], None, None) == [small, large]
    assert len(split([PartitionRange("t", ONE, 0, 0, 10**12)], None, 1)) <= 100_000
