"""Random walks of a partition that is moved while all other faults happen; see `replicas.py`.

A broker that sees that it has no replica deletes its data. It may see that late or, if it learns several versions in
one step, never; the same holds for its leader.
"""

from __future__ import annotations

from collections.abc import Callable

from metadata.commands.cluster import SetFeatureLevel
from metadata.commands.envelope import Command
from metadata.commands.replicas import AlterReassignments, BeginMoves, Move, Reassignment
from raftlog.model import BrokerId
from raftlog.version import FEATURE_LEVEL

from .cluster import TOPIC
from .replicas import Replica, Walk

BROKERS = 5


class MovingWalk(Walk):
    """Five brokers, three of them with a replica at first."""

    def __init__(self, seed: int, *, minimum: int = 2) -> None:
        self.completed = self.replaced = 0
        super().__init__(seed, replicas=BROKERS, minimum=minimum, placed=(0, 1, 2))
        self.cluster.do(SetFeatureLevel(FEATURE_LEVEL))
        self.note_version()

    def actions(self, blackouts: float) -> list[tuple[Callable[[], None], float]]:
        moves: list[tuple[Callable[[], None], float]] = [(self.reassign, 10), (self.begin, 20), (self.cancel, 2)]
        more = {self.advance: 4, self.fetch: 4, self.send_ack: 3, self.deliver_ack: 3, self.propose: 6}
        more |= {self.deliver_proposal: 4, self.append: 0.5, self.elect: 2}
        return [(do, weight * more.get(do, 1)) for do, weight in super().actions(blackouts)] + moves

    # --- The quorum ---

    def note_version(self) -> None:
        before = self.versions[-1].record if self.versions else None
        super().note_version()
        record = self.versions[-1].record
        if before is not None and before.target_replicas == record.replicas and not record.target_replicas:
            self.completed += 1
        if before is not None and before.is_moving and record.target_replicas not in (before.target_replicas, ()):
            self.replaced += 1

    def reassign(self) -> None:
        """Add, remove or replace one replica; now and then anything else. A move that has begun is mostly continued."""
        if self.cluster.partition.is_moving and self.random.random() < 0.8:
            return
        replicas = list(map(int, self.cluster.partition.replicas))
        others = [broker for broker in range(BROKERS) if broker not in replicas]
        change = self.random.random()
        if change < 0.1:
            replicas = self.random.sample(range(BROKERS), 3)
        elif change < 0.8 and others:
            replicas[self.random.randrange(len(replicas))] = self.random.choice(others)
        elif len(replicas) > 3:
            replicas.pop()
        elif others:
            replicas.append(self.random.choice(others))
        self.ask(tuple(map(BrokerId, replicas)))

    def cancel(self) -> None:
        self.ask(())

    def ask(self, target: tuple[BrokerId, ...]) -> None:
        self.decide(AlterReassignments((Reassignment(TOPIC, 0, self.cluster.partition.partition_epoch, target),)))

    def begin(self) -> None:
        self.decide(BeginMoves((Move(TOPIC, 0, self.cluster.partition.partition_epoch),)))

    def decide(self, command: Command) -> None:
        before = self.cluster.partition
        self.cluster.apply(command)
        if self.cluster.partition != before:
            self.note_version()

    # --- Brokers ---

    def advance(self) -> None:
        """Apply some versions one by one, or all of them as one difference."""
        if self.random.random() < 0.7:
            super().advance()
            return
        replica = self.some()
        if replica.up:
            replica.at = self.random.randrange(replica.at, len(self.versions))
            self.take_view(replica)

    def take_view(self, replica: Replica) -> None:
        super().take_view(replica)
        version = self.view(replica)
        if version.index < replica.incarnation:
            return
        replicas = version.record.replicas
        replica.progress = {who: end for who, end in replica.progress.items() if who[0] in replicas}
        if replica.number not in replicas:
            replica.log, replica.synced, replica.matched_epoch = [], 0, -1
