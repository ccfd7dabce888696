"""The running totals of all partitions equal a full count."""

from __future__ import annotations

from random import Random

from msgspec.structs import replace

from metadata.view import PartitionTally
from raftlog.model import (
    NO_BROKER,
    BrokerId,
    Incarnation,
    LeaderEpoch,
    PartitionEpoch,
    PartitionRecord,
    TopicId,
    TopicPartition,
)


def record(number: int, random: Random) -> PartitionRecord:
    replicas = tuple(map(BrokerId, random.sample(range(6), random.randrange(1, 5))))
    isr = tuple(sorted(random.sample(replicas, random.randrange(1, len(replicas) + 1))))
    leader = random.choice([NO_BROKER, *isr])
    name = TopicPartition(TopicId(b"t" * 16), number)
    whole = PartitionRecord(
        name, replicas, leader, Incarnation(1), LeaderEpoch(1), PartitionEpoch(1), isr, isr, len(replicas) // 2 + 1
    )
    adding = tuple(replica for replica in replicas if replica not in isr)[:1] if random.random() < 0.3 else ()
    return replace(whole, adding_replicas=adding, target_replicas=replicas if adding else ())


def test_the_tally_equals_a_full_count() -> None:
    random, tally = Random(7), PartitionTally()
    records: dict[int, PartitionRecord] = {}
    for _ in range(3_000):
        number = random.randrange(40)
        before = records.pop(number, None)
        if before is None or random.random() < 0.8:
            records[number] = record(number, random)
        tally.update(before, records.get(number))

        carried = [tally.replicas[BrokerId(b)] for b in range(6)]
        assert carried == [sum(b in r.replicas for r in records.values()) for b in range(6)]
        leaderless = {r.topic_partition for r in records.values() if not r.has_leader}
        below = {r.topic_partition for r in records.values() if r.has_leader and len(r.isr) < r.min_insync_replicas}
        lagging = {r.topic_partition for r in records.values() if set(r.replicas) - set(r.adding_replicas) - set(r.isr)}
        assert set(tally.without_leader) == leaderless
        assert set(tally.below_minimum) == below
        assert set(tally.under_replicated) == lagging - leaderless - below
