"""Assignors: every partition is read once by a permitted member, loads are even, and partitions stay where they can."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.rules.assignors import ASSIGNORS, Targets, assign_range, assign_uniform
from raftlog.model import TopicId, TopicPartition

TOPICS = [TopicId(bytes([number] * 16)) for number in range(4)]
NOBODY: dict[str, frozenset[TopicPartition]] = {}

counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 9), max_size=4)
some_topics = st.frozensets(st.sampled_from(TOPICS))
subscriptions = st.dictionaries(st.sampled_from("abcdefg"), some_topics, max_size=7)
alike = st.builds(dict.fromkeys, st.lists(st.sampled_from("abcdefg"), unique=True), some_topics)


def partitions(counts: dict[TopicId, int], topics: frozenset[TopicId]) -> set[TopicPartition]:
    return {TopicPartition(t, number) for t in topics if t in counts for number in range(counts[t])}


def check(targets: Targets, subscriptions: dict[str, frozenset[TopicId]], counts: dict[TopicId, int]) -> None:
    assert targets.keys() == subscriptions.keys()
    everything: list[TopicPartition] = []
    for member, target in targets.items():
        assert target <= partitions(counts, subscriptions[member])
        everything += target
    assert len(everything) == len(set(everything))
    read = frozenset[TopicId]().union(*subscriptions.values())
    assert set(everything) == partitions(counts, read)


@settings(max_examples=150, deadline=None)
@given(subscriptions, counts, subscriptions, counts)
def test_every_partition_is_read_once_by_a_subscriber(
    before: dict[str, frozenset[TopicId]],
    counts_before: dict[TopicId, int],
    after: dict[str, frozenset[TopicId]],
    counts_after: dict[TopicId, int],
) -> None:
    for assign in ASSIGNORS.values():
        first = assign(before, counts_before, NOBODY)
        check(first, before, counts_before)
        second = assign(after, counts_after, first)
        check(second, after, counts_after)
        assert assign(after, counts_after, second) == second, "what is assigned once is assigned again"


@settings(max_examples=150, deadline=None)
@given(alike, counts, alike, counts)
def test_uniform_is_even_and_moves_the_fewest(
    before: dict[str, frozenset[TopicId]],
    counts_before: dict[TopicId, int],
    after: dict[str, frozenset[TopicId]],
    counts_after: dict[TopicId, int],
) -> None:
    present = assign_uniform(before, counts_before, NOBODY)
    targets = assign_uniform(after, counts_after, present)
    loads = sorted((len(target) for target in targets.values()), reverse=True)
    assert not loads or loads[0] - loads[-1] <= 1
    # No even assignment keeps more: a member above its share gives up the rest, and the larger shares go to the members
    # with the most partitions.
    known = {tp for member in after for tp in partitions(counts_after, after[member])}
    had = sorted((len(present.get(member, frozenset()) & known) for member in after), reverse=True)
    most = sum(min(load, share) for load, share in zip(had, loads, strict=True))
    assert sum(len(targets[member] & present.get(member, frozenset())) for member in targets) == most


@settings(max_examples=150, deadline=None)
@given(subscriptions, counts)
def test_no_partition_could_go_to_a_subscriber_with_two_less(
    wanted: dict[str, frozenset[TopicId]], counts: dict[TopicId, int]
) -> None:
    targets = assign_uniform(wanted, counts, NOBODY)
    for member, target in targets.items():
        for partition in target:
            for other, topics in wanted.items():
                assert partition.topic_id not in topics or len(targets[other]) + 2 > len(target), (member, other)


def test_the_most_loaded_member_gives_first_if_subscriptions_differ() -> None:
    """Another order would move one partition more."""
    small, large = TOPICS[:2]
    wanted = {"a": frozenset({small, large}), "b": frozenset({small, large}), "c": frozenset({large})}
    a = frozenset({TopicPartition(large, 0), TopicPartition(large, 2)})
    b = frozenset({TopicPartition(small, 0), TopicPartition(large, 1), TopicPartition(large, 3)})
    targets = assign_uniform(wanted, {small: 1, large: 4}, {"a": a, "b": b})
    assert targets["a"] == a and targets["b"] < b and len(targets["c"]) == 1


def test_range_gives_consecutive_partitions_and_joins_topics() -> None:
    two = dict.fromkeys("abc", frozenset(TOPICS[:2]))
    targets = assign_range(two, {TOPICS[0]: 7, TOPICS[1]: 7}, NOBODY)
    assert [len(targets[member]) for member in "abc"] == [6, 4, 4]
    for target in targets.values():
        numbers = [sorted(tp.partition for tp in target if tp.topic_id == topic) for topic in TOPICS[:2]]
        assert numbers[0] == numbers[1]
        assert all(right == left + 1 for left, right in pairwise(numbers[0]))
