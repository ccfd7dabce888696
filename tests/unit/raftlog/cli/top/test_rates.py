"""Two samples as rates and events, and the screen."""

from __future__ import annotations

import msgspec

from raftlog.cli.top.rates import between
from raftlog.cli.top.sample import GroupSample, NodeSample, Sample, TopicSample
from raftlog.cli.top.screen import render

BEFORE = Sample(
    100.0,
    "c",
    0,
    7,
    {"a": TopicSample(1_000, 10_000, 4, 0, 0), "b": TopicSample(50, 500, 1, 0, 0)},
    {"g": GroupSample("Stable", 2, 900, 100)},
    {0: NodeSample("h:1", "ready", 2, 2, 0), 1: NodeSample("h:2", "ready", 0, 2, 0)},
)
AFTER = Sample(
    102.0,
    "c",
    1,
    8,
    {"a": TopicSample(3_000, 14_096, 6, 1, 0), "b": TopicSample(50, 500, 1, 0, 1), "new": TopicSample(9, 9, 0, 0, 0)},
    {"g": GroupSample("Stable", 2, 2_900, 40), "h": GroupSample("Empty", 0, 5, 0)},
    {0: NodeSample("h:1", "silent", 0, 2, 0), 1: NodeSample("h:2", "ready", 2, 2, 1)},
    3,
)


def test_rates_and_elections() -> None:
    found = between(BEFORE, AFTER)
    assert (found.seconds, found.elections, found.quorum_elections, found.controller) == (2.0, 2, 1, 1)
    assert [(one.topic, one.records_per_second, one.bytes_per_second, one.elections) for one in found.topics] == [
        ("b", 0.0, 0.0, 0),
        ("a", 1_000.0, 2_048.0, 2),
        ("new", 0.0, 0.0, 0),
    ], "what is offline comes first, then the busiest"
    assert [(one.group, one.lag, one.committed_per_second, one.lag_per_second) for one in found.groups] == [
        ("g", 40, 1_000.0, -30.0),
        ("h", 0, 0.0, 0.0),
    ]
    assert [(one.node, one.status, one.is_controller) for one in found.nodes] == [
        (0, "silent", False),
        (1, "ready", True),
    ]


def test_a_topic_that_was_created_again_has_no_rate() -> None:
    again = msgspec.structs.replace(AFTER, topics={"a": TopicSample(5, 5, 0, 0, 0)})
    (topic,) = between(BEFORE, again).topics
    assert (topic.records_per_second, topic.elections) == (0.0, 0)


def test_deleted_records_make_no_negative_throughput() -> None:
    less = msgspec.structs.replace(AFTER, topics={"a": TopicSample(900, 100, 4, 0, 0)})
    (topic,) = between(BEFORE, less).topics
    assert topic.records_per_second == 0.0 and topic.bytes_per_second < 0


def test_the_screen_is_bounded_and_names_what_it_leaves_out() -> None:
    lines = render(between(BEFORE, AFTER), 1).splitlines()
    assert (
        "1,000 records/s" in lines[0] and "1 offline" in lines[0] and "2 elections in 2 s, 1 of the quorum" in lines[0]
    )
    assert sum(line.startswith(("a ", "b ", "new ")) for line in lines) == 1
    assert lines[-1] == "and 6 more topics and groups"
    everything = render(between(BEFORE, AFTER), 10)
    assert "1*" in everything and "-30.0" in everything


def test_nothing_is_shown_as_nothing() -> None:
    empty = Sample(0.0, "c", None, 0, {}, {}, {})
    assert "controller -" in render(between(empty, empty), 5)
