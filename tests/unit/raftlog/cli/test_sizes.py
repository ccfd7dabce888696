"""Sizes of replicas, added up."""

from __future__ import annotations

import msgspec
import pytest

from raftlog.cli.records.sizes import Replica, Sizes, sizes_by, sizes_text

REPLICAS = [
    Replica(2, "b", 0, "follower", 90, 1000),
    Replica(1, "b", 0, "leader", 100, 1500),
    Replica(1, "a", 1, "leader", 5, 10),
    Replica(1, "a", 0, "leader", 5, 20),
]


@pytest.mark.parametrize(
    ("by", "rows"),
    [
        ("topic", [Sizes("a", None, None, 2, 2, 30), Sizes("b", None, None, 1, 2, 2500)]),
        ("partition", [Sizes("a", 0, None, 1, 1, 20), Sizes("a", 1, None, 1, 1, 10), Sizes("b", 0, None, 1, 2, 2500)]),
        ("broker", [Sizes(None, None, 1, 3, 3, 1530), Sizes(None, None, 2, 1, 1, 1000)]),
    ],
)
def test_sums(by: str, rows: list[Sizes]) -> None:
    assert sizes_by(by, REPLICAS) == rows


def test_replicas_have_their_lag() -> None:
    found = [one for one in sizes_by("replica", REPLICAS) if isinstance(one, Replica)]
    assert [(one.topic, one.partition, one.broker, one.offset_lag) for one in found] == [
        ("a", 0, 1, 0), ("a", 1, 1, 0), ("b", 0, 1, 0), ("b", 0, 2, 10),
    ]  # fmt: skip


@pytest.mark.parametrize("by", ["topic", "partition", "broker", "replica"])
def test_the_text_ends_with_the_sum(by: str) -> None:
    found = sizes_by(by, REPLICAS)
    lines = sizes_text(by, found).splitlines()
    assert lines[-1] == "4 replicas, 2.5 KiB."
    assert len(lines) == len(found) + 3
    assert msgspec.json.decode(msgspec.json.encode(found))


def test_nothing_is_a_header_and_a_sum() -> None:
    assert sizes_text("topic", sizes_by("topic", [])).endswith("0 replicas, 0 B.")
