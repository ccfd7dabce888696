"""A consumer with a fetch session, with all faults of brokers: it gets each batch once, in order, and all of them (S1).

The consumer behaves like the client: an answered partition is requested again, at its current leader; sessions are lost
and begin again; slots are dropped at any moment.
"""

from __future__ import annotations

import random

import pytest

from raftlog.errors import RaftlogError
from tests.support.client.session_reader import Polled, SessionReader
from tests.support.partitions.replication_cluster import ReplicationCluster

PARTITIONS = 4


class Consumer:
    """A consumer of all partitions, at two brokers."""

    def __init__(self, cluster: ReplicationCluster, dice: random.Random) -> None:
        self.cluster = cluster
        self.dice = dice
        self.streams = {number: SessionReader(cluster, number) for number in (0, 1)}
        self.positions = dict.fromkeys(range(PARTITIONS), 0)
        self.asked: dict[int, tuple[int, int]] = {}
        """Partition → broker and slot."""
        self.polls: list[tuple[int, Polled]] = []
        self.slots = 0

    def leader(self, partition: int) -> int:
        return int(self.cluster.records[partition].leader)

    def take(self) -> None:
        """Process an answer."""
        for number, poll in [one for one in self.polls if one[1].slots is not None]:
            self.polls.remove((number, poll))
            for slot, error in poll.over.items():
                partition = next((p for p, asked in self.asked.items() if asked == (number, slot)), None)
                if partition is None:
                    continue  # the slot was dropped, or belongs to an ended session
                del self.asked[partition]
                for base, end in poll.ends[slot] if not error else ():
                    assert base == self.positions[partition], "once, and in order"
                    self.positions[partition] = end

    def ask(self, number: int) -> None:
        """Request the partitions that are led there and not requested yet; now and then drop one first."""
        dropped = []
        for partition, (where, slot) in list(self.asked.items()):
            if where == number and (self.leader(partition) != number or self.dice.random() < 0.1):
                del self.asked[partition]
                dropped.append(slot)
        added = {}
        for partition, position in self.positions.items():
            if partition not in self.asked and self.leader(partition) == number:
                self.slots += 1
                added[self.slots] = (partition, position)
                self.asked[partition] = (number, self.slots)
        wanted = self.dice.choice([1, 1, 300])
        room = self.dice.choice([100, 1000, 1 << 20])
        try:
            poll = self.streams[number].poll(
                added, dropped=tuple(dropped), wait_ms=100, min_bytes=wanted, max_bytes=room
            )
        except RaftlogError:
            self.forget(number)
        else:
            self.polls.append((number, poll))

    def forget(self, number: int) -> None:
        """The stream broke."""
        self.streams[number].close()
        self.streams[number] = SessionReader(self.cluster, number)
        self.asked = {partition: asked for partition, asked in self.asked.items() if asked[0] != number}
        self.polls = [one for one in self.polls if one[0] != number]


@pytest.mark.parametrize("seed", range(6))
def test_each_batch_arrives_once_in_order_and_none_is_left(seed: int) -> None:
    dice = random.Random(seed)
    cluster = ReplicationCluster(PARTITIONS)
    consumer = Consumer(cluster, dice)
    for _ in range(250):
        action = dice.random()
        if action < 0.45:
            partition = dice.randrange(PARTITIONS)
            cluster.produce(consumer.leader(partition), partition, size=dice.randrange(1, 400))
        elif action < 0.80:
            consumer.ask(dice.randrange(2))
        elif action < 0.84:
            cluster.elect(dice.randrange(2), partition=dice.randrange(PARTITIONS))
        elif action < 0.87:
            consumer.forget(dice.randrange(2))
        else:
            cluster.scheduler.advance(dice.choice([0.001, 0.01, 0.2]))
        if dice.random() < 0.7:
            cluster.settle()
        consumer.take()
    cluster.settle()
    for _ in range(60):
        for number in (0, 1):
            consumer.ask(number)
        cluster.scheduler.advance(0.2)
        cluster.settle()
        consumer.take()
    ends = {p: cluster.log_end(consumer.leader(p), p)[0] for p in range(PARTITIONS)}
    assert consumer.positions == ends and sum(ends.values()) > 50
    for number in (0, 1):
        consumer.forget(number)
    cluster.settle()
    for number in (0, 1):
        sessions = cluster.members[number].manager.fetches.sessions
        assert (len(sessions), sessions.slots) == (0, 0)
        assert not any(driver.facts().waiters for driver in cluster.members[number].manager.drivers.values())
