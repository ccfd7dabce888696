"""Series keep their places; one without traffic gives way, and its values do not become another's."""

from __future__ import annotations

import pytest

from raftlog.broker.plots.columns import (
    COLUMNS,
    IDLE_SLOTS,
    MOST_GROUPS,
    MOST_TOPICS,
    NODE_COLUMNS,
    NODE_SERIES,
    Columns,
)


def full() -> Columns:
    columns = Columns()
    for number in range(MOST_TOPICS):
        assert columns.topics.take(f"{number:032x}", 1_000 + number, busy=True)
    return columns


def test_every_series_has_columns_of_its_own() -> None:
    columns = full()
    for number in range(MOST_GROUPS):
        columns.groups.take(f"group-{number}", 5, busy=False)
    taken = list(columns.of_node()[0])
    for number in range(MOST_TOPICS):
        found = columns.of_topic(f"{number:032x}")
        assert found is not None and found[1] == 1_000 + number
        taken += found[0]
    for number in range(MOST_GROUPS):
        of_group = columns.of_group(f"group-{number}")
        assert of_group is not None
        taken += of_group[0]
    assert len(taken) == len(set(taken)) and max(taken) == COLUMNS - 1
    assert len(NODE_SERIES) <= NODE_COLUMNS


def test_a_series_with_traffic_takes_the_place_that_was_idle_for_longest() -> None:
    columns = full()
    columns.topics.take("0" * 32, 9_000, busy=True)
    assert not columns.topics.take("quiet", 9_000, busy=False), "one without traffic waits for a free place"
    assert not columns.topics.take("early", 1_001 + IDLE_SLOTS - 1, busy=True), "nothing has been idle for an hour"
    before = columns.of_topic(f"{1:032x}")
    assert columns.topics.take("new", 1_001 + IDLE_SLOTS, busy=True)
    assert before is not None and columns.of_topic("new") == (before[0], 1_001 + IDLE_SLOTS)
    assert columns.of_topic(f"{1:032x}") is None and columns.of_topic("0" * 32) is not None


def test_a_series_that_is_gone_leaves_its_place_at_once() -> None:
    columns = full()
    assert columns.topics.leave(lambda key: key != f"{7:032x}")
    assert not columns.topics.leave(lambda key: True)
    assert columns.topics.take("quiet", 2_000, busy=False)
    assert not columns.topics.take("quiet", 2_001, busy=True), "it has its place"


def test_the_table_survives_the_disk() -> None:
    columns = full()
    columns.groups.take("billing", 77, busy=True)
    again = Columns.decode(columns.encode())
    assert again.encode() == columns.encode()
    assert again.of_group("billing") == columns.of_group("billing")
    assert not again.topics.take(f"{3:032x}", 2_000, busy=True)


@pytest.mark.parametrize("change", ["cut", "flipped", "empty", "noise", "other format"])
def test_a_damaged_table_is_as_good_as_none(change: str) -> None:
    content = full().encode()
    damaged = {
        "cut": content[:-1],
        "flipped": content[:9] + bytes([content[9] ^ 1]) + content[10:],
        "empty": b"",
        "noise": b"\x93" * 40,
        "other format": b"\x00" * 4,
    }[change]
    assert Columns.decode(damaged).encode() == Columns().encode()
