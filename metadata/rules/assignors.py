"""Assignors: pure functions from subscriptions, partitions and current targets to new targets.

Each takes the members' topics and the topics' partition counts, and assigns every partition of a subscribed topic to
exactly one of its subscribers. Ties are settled by name, so equal arguments give equal targets.

* `range` (Kafka's RangeAssignor): topic by topic, consecutive partitions. If all members subscribe to all topics, equal
  partition numbers of different topics go to the same member, as joins require. It ignores the current targets.
* `uniform` (KIP-848) balances and keeps current targets as far as balance allows. If all members subscribe to the same
  topics, loads differ by at most one.
* `cooperative-sticky` (KIP-429's name) is `uniform`: reconciliation is cooperative for every assignor here, and both
  keep what they can.

With different subscriptions "balanced" means that no partition could go to a subscriber of its topic with two fewer.

The coordinator runs the assignor and the image grants the targets, so a change of an assignor's code does not change
the state machine.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from typing import TypeAlias

from metadata.records.groups import in_order
from raftlog.model import TopicId, TopicPartition

Subscriptions: TypeAlias = Mapping[str, frozenset[TopicId]]
"""Member → topics."""
PartitionCounts: TypeAlias = Mapping[TopicId, int]
Targets: TypeAlias = dict[str, frozenset[TopicPartition]]
Assignor: TypeAlias = Callable[[Subscriptions, PartitionCounts, Mapping[str, frozenset[TopicPartition]]], Targets]

DEFAULT_ASSIGNOR = "uniform"


def assign_range(
    subscriptions: Subscriptions, counts: PartitionCounts, present: Mapping[str, frozenset[TopicPartition]]
) -> Targets:
    """Assign consecutive partitions of each topic to its subscribers by name; the first ones get one more."""
    chosen: dict[str, list[TopicPartition]] = {member: [] for member in subscriptions}
    for topic_id in sorted(counts):
        readers = sorted(member for member, topics in subscriptions.items() if topic_id in topics)
        if not readers:
            continue
        share, more = divmod(counts[topic_id], len(readers))
        first = 0
        for position, member in enumerate(readers):
            end = first + share + (position < more)
            chosen[member].extend(TopicPartition(topic_id, number) for number in range(first, end))
            first = end
    return {member: frozenset(partitions) for member, partitions in chosen.items()}


def assign_uniform(
    subscriptions: Subscriptions, counts: PartitionCounts, present: Mapping[str, frozenset[TopicPartition]]
) -> Targets:
    """Return a balanced assignment that stays near the current one."""
    if len(set(subscriptions.values())) <= 1:
        return _assign_alike(subscriptions, counts, present)
    return _assign_unlike(subscriptions, counts, present)


def _assign_alike(
    subscriptions: Subscriptions, counts: PartitionCounts, present: Mapping[str, frozenset[TopicPartition]]
) -> Targets:
    """Assign with the fewest moves if all members subscribe to the same topics.

    Members keep partitions up to their share; those that keep most get the larger shares.
    """
    members = sorted(subscriptions)
    if not members:
        return {}
    topics = subscriptions[members[0]]
    wanted = [TopicPartition(t, number) for t in sorted(topics) for number in range(counts.get(t, 0))]
    known = set(wanted)
    kept, taken = _still_there(members, known, present)
    share, more = divmod(len(wanted), len(members))
    by_load = sorted(members, key=lambda member: (-len(kept[member]), member))
    shares = {member: share + (position < more) for position, member in enumerate(by_load)}
    for member in members:
        for partition in kept[member][shares[member] :]:
            taken.discard(partition)
        del kept[member][shares[member] :]
    free = iter([partition for partition in wanted if partition not in taken])
    for member in members:
        while len(kept[member]) < shares[member]:
            kept[member].append(next(free))
    return {member: frozenset(partitions) for member, partitions in kept.items()}


def _still_there(
    members: list[str], known: set[TopicPartition], present: Mapping[str, frozenset[TopicPartition]]
) -> tuple[dict[str, list[TopicPartition]], set[TopicPartition]]:
    """Return each member's current known partitions, without duplicates, and their union."""
    kept: dict[str, list[TopicPartition]] = {}
    taken: set[TopicPartition] = set()
    for member in members:
        mine = in_order(p for p in present.get(member, frozenset()) if p in known and p not in taken)
        kept[member] = mine
        taken.update(mine)
    return kept, taken


def _assign_unlike(
    subscriptions: Subscriptions, counts: PartitionCounts, present: Mapping[str, frozenset[TopicPartition]]
) -> Targets:
    """Assign if subscriptions differ.

    Keep current assignments that are still allowed; give each other partition to its least loaded subscriber, topics
    with few subscribers first; then move one at a time from the most loaded as long as that improves the balance.
    """
    readers = {t: sorted(m for m, topics in subscriptions.items() if t in topics) for t in sorted(counts)}
    chosen: dict[str, set[TopicPartition]] = {member: set() for member in sorted(subscriptions)}
    taken: set[TopicPartition] = set()
    for member, mine in chosen.items():
        for partition in in_order(present.get(member, frozenset())):
            topic_id = partition.topic_id
            allowed = topic_id in subscriptions[member] and partition.partition < counts.get(topic_id, 0)
            if allowed and partition not in taken:
                mine.add(partition)
                taken.add(partition)
    for topic_id in sorted((t for t in readers if readers[t]), key=lambda t: (len(readers[t]), t)):
        loads = [(len(chosen[member]), member) for member in readers[topic_id]]
        heapq.heapify(loads)
        for number in range(counts[topic_id]):
            partition = TopicPartition(topic_id, number)
            if partition not in taken:
                load, member = loads[0]
                chosen[member].add(partition)
                heapq.heapreplace(loads, (load + 1, member))
    _even_out(chosen, readers)
    return {member: frozenset(mine) for member, mine in chosen.items()}


def _even_out(chosen: dict[str, set[TopicPartition]], readers: Mapping[TopicId, list[str]]) -> None:
    """Move partitions until balanced. Every move lowers the sum of squared loads by at least two, so it terminates."""
    by_topic: dict[str, dict[TopicId, list[TopicPartition]]] = {}
    for member, mine in chosen.items():
        for partition in in_order(mine):
            by_topic.setdefault(member, {}).setdefault(partition.topic_id, []).append(partition)
    moved = True
    while moved:
        moved = False
        for giver in sorted(chosen, key=lambda member: (-len(chosen[member]), member)):
            for topic_id in sorted(by_topic.get(giver, ())):
                taker = min(readers[topic_id], key=lambda member: (len(chosen[member]), member))
                while by_topic[giver][topic_id] and len(chosen[taker]) + 2 <= len(chosen[giver]):
                    partition = by_topic[giver][topic_id].pop()
                    chosen[giver].discard(partition)
                    chosen[taker].add(partition)
                    by_topic.setdefault(taker, {}).setdefault(topic_id, []).append(partition)
                    moved = True
                    taker = min(readers[topic_id], key=lambda member: (len(chosen[member]), member))


ASSIGNORS: Mapping[str, Assignor] = {
    "range": assign_range,
    "uniform": assign_uniform,
    "cooperative-sticky": assign_uniform,
}
"""The assignors by the names that members request."""
