"""The bound on the series of one metric."""

from __future__ import annotations

from raftlog.broker.metrics.series import ALL_PARTITIONS, OTHERS, Series


def test_each_partition_has_a_series_while_there_is_room() -> None:
    series = Series(100, by_topic=False)
    series.begin(100, ["a", "b"])
    assert series.labels("a", "3") == ("a", "3")
    assert series.joined == 0


def test_partitions_are_joined_by_topic_beyond_the_bound_or_if_asked_for() -> None:
    for series in (Series(100, by_topic=False), Series(100, by_topic=True)):
        series.begin(101, ["a", "b"])
        assert series.labels("a", "3") == ("a", ALL_PARTITIONS)
        assert series.joined == 99


def test_topics_are_joined_beyond_the_bound() -> None:
    series = Series(100, by_topic=True)
    names = [f"t{number:03}" for number in range(150)]
    series.begin(150, names)
    labels = {series.labels(name, "0") for name in names}
    assert len(labels) == 100
    assert (OTHERS, ALL_PARTITIONS) in labels
    assert series.topic("t149") == OTHERS
