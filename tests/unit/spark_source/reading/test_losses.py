"""Losses are distinct and name the range; the start and the end of a query; the part of the log that filters leave."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from raftlog.errors import InvalidRequest
from spark_source.options.values import EARLIEST, LATEST
from spark_source.reading import losses
from spark_source.reading.filters import Restrictions, push
from spark_source.reading.log_bounds import PartitionBounds, TopicBounds
from spark_source.reading.losses import DataLoss, LossKind
from spark_source.reading.offsets import PartitionRange, SourceOffset
from spark_source.reading.starting import TimeQuery, Where, resolve, time_queries

ONE, TWO = "1" * 32, "2" * 32
NOW = {"t": TopicBounds("t", ONE, {0: PartitionBounds(10, 50)})}


def at(offset: int, topic_id: str = ONE, topic: str = "t") -> SourceOffset:
    return SourceOffset({topic: topic_id}, {}, {topic: {0: offset}})


@pytest.mark.parametrize(
    ("start", "kind", "told"),
    [
        (at(3), LossKind.RETENTION, "t/0 [3, 10): retention overtook the query: the log begins at offset 10 now"),
        (at(60), LossKind.BEYOND_END, "t/0 [50, 60): the offset lies beyond the log's end: the log ends at offset 50"),
        (at(20, TWO), LossKind.RECREATED, "t/0 [20, ...): the topic was deleted and created again: its id was 222"),
        (
            at(20, ONE, "gone"),
            LossKind.DELETED,
            "gone/0 [20, ...): the topic was deleted: the cluster has no such topic",
        ),
    ],
)
def test_each_kind_of_loss_names_what_is_missing(start: SourceOffset, kind: LossKind, told: str) -> None:
    (loss,) = losses.since(start, NOW)
    assert loss.kind is kind and str(loss).startswith(told)
    error = DataLoss([loss])
    assert error.code == "offset_out_of_range" and told in error.detail and "failOnDataLoss=false" in error.detail
    again = pickle.loads(pickle.dumps(error))
    assert again.losses == error.losses and again.detail == error.detail


def test_an_available_range_is_no_loss() -> None:
    assert losses.since(at(10), NOW) == losses.since(at(50), NOW) == []


def test_many_losses_are_summarized() -> None:
    many = [losses.deleted("t", number, 0, 1) for number in range(12)]
    assert "and 2 more" in DataLoss(many).detail


def test_ranges_are_limited_to_the_readable_part() -> None:
    ranges = [
        PartitionRange("t", ONE, 0, 3, 20),
        PartitionRange("t", ONE, 0, 40, 60),
        PartitionRange("t", ONE, 0, 1, 5),
        PartitionRange("t", TWO, 0, 10, 20),
        PartitionRange("gone", ONE, 0, 10, 20),
        PartitionRange("t", ONE, 7, 10, 20),
    ]
    readable, lost = losses.readable(ranges, NOW)
    assert readable == [PartitionRange("t", ONE, 0, 10, 20), PartitionRange("t", ONE, 0, 40, 50)]
    assert [(loss.kind, loss.start, loss.end) for loss in lost] == [
        (LossKind.RETENTION, 3, 10),
        (LossKind.BEYOND_END, 50, 60),
        (LossKind.RETENTION, 1, 5),
        (LossKind.RECREATED, 10, 20),
        (LossKind.DELETED, 10, 20),
        (LossKind.DELETED, 10, 20),
    ]


# --- Start and end of a query -----------------------------------------------------------------------------------------

TOPICS = {"t": TopicBounds("t", ONE, {0: PartitionBounds(10, 50), 1: PartitionBounds(0, 7)})}


def test_positions_become_offsets() -> None:
    assert resolve(Where("o", everywhere=EARLIEST), TOPICS, {}) == {"t": {0: 10, 1: 0}}
    assert resolve(Where("o", everywhere=LATEST), TOPICS, {}) == {"t": {0: 50, 1: 7}}
    assert resolve(Where("o", offsets={"t": {0: 99, 1: EARLIEST}}), TOPICS, {}) == {"t": {0: 99, 1: 0}}


def test_times_become_offsets() -> None:
    where = Where("startingTimestamp", timestamp_ms=5)
    queries = time_queries(where, TOPICS)
    assert queries == [TimeQuery("t", 0, 5), TimeQuery("t", 1, 5)]
    assert resolve(where, TOPICS, {queries[0]: 20, queries[1]: -1}) == {"t": {0: 20, 1: 7}}
    strict = Where("startingTimestamp", timestamp_ms=5, error_without_match=True)
    with pytest.raises(InvalidRequest, match="t/1 has no record at or after 5"):
        resolve(strict, TOPICS, {queries[0]: 20, queries[1]: -1})
    mixed = Where("startingOffsetsByTimestamp", timestamps={"t": {0: 5, 1: 6}})
    assert time_queries(mixed, TOPICS) == [TimeQuery("t", 0, 5), TimeQuery("t", 1, 6)]


@pytest.mark.parametrize("named", [{"t": {0: 1}}, {"t": {0: 1, 1: 1, 2: 1}}, {"t": {0: 1, 1: 1}, "u": {0: 1}}])
def test_json_names_every_partition_and_no_other(named: dict[str, dict[int, int]]) -> None:
    with pytest.raises(InvalidRequest, match="must name every partition"):
        resolve(Where("startingOffsets", offsets=named), TOPICS, {})
    with pytest.raises(InvalidRequest, match="must name every partition"):
        time_queries(Where("startingOffsetsByTimestamp", timestamps=named), TOPICS)


# --- Filters ----------------------------------------------------------------------------------------------------------


def condition(kind: str, column: str, value: Any = None) -> Any:
    made = type(kind, (SimpleNamespace,), {})
    return made(attribute=(column,)) if kind == "IsNotNull" else made(attribute=(column,), value=value)


def left(*conditions: Any) -> tuple[Restrictions, list[str]]:
    found, unhandled = push(conditions, Restrictions())
    return found, [type(one).__name__ for one in unhandled]


def test_conditions_on_positions_select_ranges_and_are_complete() -> None:
    found, unhandled = left(
        condition("EqualTo", "topic", "t"),
        condition("StringStartsWith", "topic", "t"),
        condition("In", "partition", (0, 3)),
        condition("EqualNullSafe", "partition", 0),
        condition("GreaterThan", "offset", 12),
        condition("LessThanOrEqual", "offset", 20),
        condition("IsNotNull", "offset"),
    )
    assert unhandled == []
    assert found.choose(TOPICS) == {"t": TopicBounds("t", ONE, {0: PartitionBounds(10, 50)})}
    assert found.cut(PartitionRange("t", ONE, 0, 10, 50)) == PartitionRange("t", ONE, 0, 13, 21)
    nothing, _ = left(condition("EqualTo", "topic", "t"), condition("EqualTo", "topic", "u"))
    assert nothing.choose(TOPICS) == {}
    one, _ = left(condition("EqualTo", "offset", 12), condition("LessThan", "offset", 30))
    assert one.cut(PartitionRange("t", ONE, 0, 10, 50)).size == 1


def test_spark_keeps_the_conditions_that_it_must_test_itself() -> None:
    moment = datetime(1970, 1, 1, 0, 0, 1, 500, tzinfo=UTC)
    found, unhandled = left(
        condition("GreaterThan", "timestamp", moment),
        condition("LessThan", "timestamp", moment),
        condition("EqualTo", "key", b"k"),
        condition("IsNotNull", "key"),
        condition("StringContains", "topic", "x"),
        condition("EqualTo", "offset", 1.5),
        condition("GreaterThan", "partition", 1),
        condition("In", "partition", (0, None)),
        condition("Not", "offset", 3),
    )
    assert len(unhandled) == 9
    assert found == Restrictions(since_ms=1000)
