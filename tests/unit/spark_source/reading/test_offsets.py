"""The offset in the checkpoint: equal meaning gives equal JSON.

The first micro-batch that was never committed is read from the query's original start (S1: nothing is skipped).
"""

from __future__ import annotations

import json

import pytest

from raftlog.errors import InvalidRequest
from spark_source.reading import planning
from spark_source.reading.log_bounds import PartitionBounds, TopicBounds
from spark_source.reading.offsets import PartitionRange, SourceOffset, planned_ranges

ONE, TWO = "1" * 32, "2" * 32


def picture(topic_id: str = ONE, **bounds: tuple[int, int]) -> dict[str, TopicBounds]:
    """`p0=(start, end)`."""
    partitions = {int(name[1:]): PartitionBounds(*both) for name, both in bounds.items()}
    return {"t": TopicBounds("t", topic_id, partitions)}


def offset(ends: dict[int, int], base: dict[int, int] | None = None, topic_id: str = ONE) -> SourceOffset:
    return SourceOffset({"t": topic_id}, {"t": base} if base else {}, {"t": ends})


def test_json_is_sorted_and_survives_a_round_trip() -> None:
    made = SourceOffset({"b": TWO, "a": ONE}, {"b": {10: 1, 9: 0}}, {"b": {10: 5, 9: 4}, "a": {0: 7}})
    text = json.dumps(made.to_json())
    assert text == (
        f'{{"v": 1, "id": {{"a": "{ONE}", "b": "{TWO}"}}, "base": {{"b": {{"9": 0, "10": 1}}}}, '
        '"t": {"a": {"0": 7}, "b": {"9": 4, "10": 5}}}'
    )
    assert SourceOffset.from_json(json.loads(text)) == made
    assert json.dumps(SourceOffset.from_json(json.loads(text)).to_json()) == text


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"v": 2, "id": {}, "base": {}, "t": {}},
        {"v": 1, "id": {"t": "xyz"}, "base": {}, "t": {"t": {"0": 1}}},
        {"v": 1, "id": {}, "base": {}, "t": {"t": {"0": 1}}},
        {"v": 1, "id": {"t": ONE}, "base": {}, "t": {}},
        {"v": 1, "id": {"t": ONE}, "base": {}, "t": {"t": {"0": -1}}},
        {"v": 1, "id": {"t": ONE}, "base": {}, "t": {"t": {"zero": 1}}},
        {"v": 1, "id": {"t": ONE}, "base": {}, "t": {"t": 1}},
        {"v": 1, "id": {"t": ONE}, "base": None, "t": {"t": {"0": 1}}},
        {"events": {"0": 17}},
    ],
)
def test_a_foreign_offset_is_refused(document: object) -> None:
    with pytest.raises(InvalidRequest, match="checkpoint holds an offset that this source cannot read"):
        SourceOffset.from_json(document)


def test_ranges_lie_between_two_offsets() -> None:
    start, end = offset({0: 5, 1: 7}), offset({0: 9, 1: 7})
    assert planned_ranges(start, end) == [PartitionRange("t", ONE, 0, 5, 9)]


def test_an_uncommitted_first_batch_begins_where_the_query_first_began() -> None:
    """The driver died after it had planned batch 0, which began at the latest offset, 100. Since then 300 records
    arrived; Spark asks for the start again, gets 400, and plans from there to the end that it had recorded."""
    first = planning.begin(picture(p0=(0, 100)), {"t": {0: 100}})
    planned = planning.advance(first, picture(p0=(0, 250)), None)
    again = planning.begin(picture(p0=(0, 400)), {"t": {0: 400}})
    assert planned_ranges(again, planned) == planned_ranges(first, planned) == [PartitionRange("t", ONE, 0, 100, 250)]
    behind = planning.begin(picture(p0=(60, 400)), {"t": {0: 60}})  # "earliest", after retention
    assert planned_ranges(behind, planned) == [PartitionRange("t", ONE, 0, 100, 250)]


def test_the_base_is_dropped_when_a_partition_has_advanced() -> None:
    first = planning.begin(picture(p0=(0, 10), p1=(0, 10)), {"t": {0: 10, 1: 10}})
    second = planning.advance(first, picture(p0=(0, 20), p1=(0, 10)), None)
    assert second.base == {"t": {0: 10, 1: 10}}
    third = planning.advance(second, picture(p0=(0, 30), p1=(0, 10)), None)
    assert third.base == {"t": {1: 10}}
    assert planned_ranges(second, third) == [PartitionRange("t", ONE, 0, 20, 30)]
    fourth = planning.advance(third, picture(p0=(0, 30), p1=(0, 40)), None)
    assert planned_ranges(third, fourth) == [PartitionRange("t", ONE, 1, 10, 40)]
    assert planning.advance(fourth, picture(p0=(0, 31), p1=(0, 40)), None).base == {}


def test_a_new_partition_begins_at_its_first_record_also_after_a_replay() -> None:
    start = offset({0: 5})
    end = planning.advance(start, picture(p0=(0, 5), p1=(3, 8)), None)
    assert end == offset({0: 5, 1: 8}, {1: 3})
    assert planned_ranges(start, end) == [PartitionRange("t", ONE, 1, 3, 8)]


def test_a_recreated_topic_begins_at_its_first_record() -> None:
    start = offset({0: 500})
    end = planning.advance(start, picture(TWO, p0=(0, 8)), None)
    assert end == offset({0: 8}, {0: 0}, TWO)
    assert planned_ranges(start, end) == [PartitionRange("t", TWO, 0, 0, 8)]


def test_an_offset_without_a_base_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no starting offset of t/1"):
        planned_ranges(offset({0: 5}), offset({0: 5, 1: 9}))
