"""Who is to read what: pure functions from subscriptions, partitions and present targets to new targets.

Each takes the members' topics and the topics' partition counts, and gives every partition that somebody subscribes to
to exactly one subscriber of its topic. Ties are settled by name, so equal arguments give equal targets.

* `range` (Kafka's RangeAssignor): topic by topic, consecutive partitions; the same numbers of different topics meet at
  the same member where all subscribe to all, which joins need. It moves whatever its numbers say.
* `uniform` (KIP-848) balances, keeping present targets as far as balance allows. Loads differ by one at most where all
  subscribe to the same topics.
* `cooperative-sticky` (KIP-429's name) is `uniform`: reconciliation is cooperative for all of them here, and both keep
  what they can.

With different subscriptions "balanced" means: no partition could go to a subscriber of its topic that has two less.
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
    """Consecutive partitions of each topic to its subscribers in order of their names; the first get one more."""
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
    """Balanced, and of all that is balanced near what is present."""
    if len(set(subscriptions.values())) <= 1:
        return _assign_alike(subscriptions, counts, present)
    return _assign_unlike(subscriptions, counts, present)


def _assign_alike(
    subscriptions: Subscriptions, counts: PartitionCounts, present: Mapping[str, frozenset[TopicPartition]]
) -> Targets:
    """All subscribe to the same topics: the fewest moves that balance. Members keep up to their share; those that keep
    most get the larger shares."""
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
    """What each has of those that are known, each partition once; and all of that together."""
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
    """Subscriptions differ: keep what is present and allowed, give the rest to the least loaded of those who may have
    it (topics with few subscribers first), then move one by one, from the most loaded, as long as that balances."""
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
    """Every move lowers the sum of squared loads by two at least, so it ends."""
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
"""By the names that members ask for."""
