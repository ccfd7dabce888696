"""Plans of reassignments, for balancing a cluster and for emptying brokers.

A plan is a function of the records alone and changes nothing; its caller requests the reassignments. There are two
plans.

`balance` removes, one after the other:

1. **Racks that hold a partition twice**, if a live rack holds none of it.
2. **Uneven replicas**: they move from the broker with the most to the one with the fewest until the two differ by at
   most one, never putting a partition into fewer racks than before.
3. **Uneven preferred leaders**, by reordering replicas, along a chain of partitions if no single one suffices.

Each step strictly improves its own measure and worsens none before it, so it terminates. If nothing improves, the plan
is empty: a balanced cluster stays as it is. Every moved replica had to leave its broker: moves are minimal except where
racks forbid it.

`drain` gives every replica of the leaving brokers to another live broker: one in a rack that the partition lacks first,
then the one with the fewest replicas. Nothing else moves.

Replicas on fenced brokers stay (the brokers may return in a moment), and so do partitions under reassignment, which
count where they will be.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from raftlog.errors import InvalidRequest
from raftlog.model import BrokerId, BrokerRecord, PartitionRecord, TopicId, TopicPartition


class PlannedMove(msgspec.Struct, frozen=True):
    """One partition's replicas as they are and as they should be, the preferred leader first."""

    topic_partition: TopicPartition
    replicas: tuple[BrokerId, ...]
    target: tuple[BrokerId, ...]

    @property
    def adding(self) -> tuple[BrokerId, ...]:
        """Brokers that would receive a copy."""
        return tuple(broker for broker in self.target if broker not in self.replicas)


def balance(brokers: Sequence[BrokerRecord], partitions: Iterable[PartitionRecord]) -> list[PlannedMove]:
    """Return moves that even out racks, replicas and leaders; empty if nothing would improve."""
    layout = _Layout(brokers, partitions, leaving=())
    layout.spread_racks()
    layout.even_replicas()
    layout.even_leaders()
    return layout.moves()


def drain(
    brokers: Sequence[BrokerRecord],
    partitions: Iterable[PartitionRecord],
    leaving: Collection[BrokerId],
    topic_names: Mapping[TopicId, str] | None = None,
) -> list[PlannedMove]:
    """Return moves that leave no replica on these brokers. `topic_names` are for errors.

    Raises `InvalidRequest` if too few other brokers remain, a broker is unknown, or a partition on one of them is being
    moved.
    """
    known = {broker.broker_id for broker in brokers}
    unknown = sorted(set(leaving) - known)
    if unknown:
        raise InvalidRequest("invalid_request", f"broker {unknown[0]} is not registered")
    layout = _Layout(brokers, partitions, leaving=leaving)
    layout.empty(leaving, topic_names or {})
    return layout.moves()


class _Layout:
    """The replica lists that a plan revises."""

    def __init__(
        self, brokers: Sequence[BrokerRecord], partitions: Iterable[PartitionRecord], *, leaving: Collection[BrokerId]
    ) -> None:
        self._racks: Mapping[BrokerId, str] = {broker.broker_id: broker.rack for broker in brokers}
        self._usable = sorted(b.broker_id for b in brokers if not b.fenced and b.broker_id not in leaving)
        """The brokers that may receive replicas."""
        self._before: dict[TopicPartition, tuple[BrokerId, ...]] = {}
        self._now: dict[TopicPartition, list[BrokerId]] = {}
        """The movable partitions and their replicas, in a fixed order."""
        self._fixed: dict[TopicPartition, tuple[BrokerId, ...]] = {}
        """Partitions under reassignment, with the replicas that they will have."""
        self._on: dict[BrokerId, dict[TopicPartition, None]] = {broker: {} for broker in self._racks}
        self._count: Counter[BrokerId] = Counter()
        self._leads: Counter[BrokerId] = Counter()
        for record in sorted(partitions, key=lambda record: record.topic_partition):
            tp = record.topic_partition
            replicas = record.target_replicas or record.replicas
            self._count.update(replicas)
            self._leads[replicas[0]] += 1
            if record.target_replicas:
                self._fixed[tp] = replicas
                continue
            self._before[tp] = replicas
            self._now[tp] = list(replicas)
            for broker in replicas:
                self._on[broker][tp] = None

    def moves(self) -> list[PlannedMove]:
        """Return the changed partitions."""
        return [
            PlannedMove(tp, self._before[tp], tuple(now))
            for tp, now in self._now.items()
            if self._before[tp] != tuple(now)
        ]

    # --- Racks and replicas ---

    def spread_racks(self) -> None:
        for tp, replicas in self._now.items():
            for broker in list(replicas):
                twice = sum(1 for other in replicas if self._racks[other] == self._racks[broker]) > 1
                if not twice or broker not in self._usable:
                    continue
                held = {self._racks[other] for other in replicas}
                free = [usable for usable in self._usable if self._racks[usable] not in held]
                if free:
                    self._replace(tp, broker, min(free, key=lambda candidate: (self._count[candidate], candidate)))

    def even_replicas(self) -> None:
        while self._usable:
            ladder = sorted(self._usable, key=lambda broker: (self._count[broker], broker))
            if not any(self._move_one(most, ladder) for most in reversed(ladder)):
                return

    def _move_one(self, most: BrokerId, ladder: Sequence[BrokerId]) -> bool:
        """Move one replica from a broker to the emptiest that can take one, if that makes both more alike."""
        for fewest in ladder:
            if self._count[most] - self._count[fewest] < 2:
                return False
            found = self._movable(most, fewest)
            if found is not None:
                self._replace(found, most, fewest)
                return True
        return False

    def _movable(self, out: BrokerId, into: BrokerId) -> TopicPartition | None:
        """Return a partition to move, preferring one whose preferred leader stays: fewer leaders remain to even out."""
        leader = None
        for tp in self._on[out]:
            replicas = self._now[tp]
            if into not in replicas and self._keeps_racks(replicas, out, into):
                if replicas[0] != out:
                    return tp
                leader = tp if leader is None else leader
        return leader

    def _keeps_racks(self, replicas: Sequence[BrokerId], out: BrokerId, into: BrokerId) -> bool:
        others = {self._racks[broker] for broker in replicas if broker != out}
        return self._racks[into] not in others or self._racks[out] in others

    def empty(self, leaving: Collection[BrokerId], topic_names: Mapping[TopicId, str]) -> None:
        def shown(tp: TopicPartition) -> str:
            return f"{topic_names.get(tp.topic_id) or tp.topic_id.hex()}/{tp.partition}"

        gone = sorted(set(leaving))
        for tp, fixed in self._fixed.items():
            if set(gone).intersection(fixed):
                raise InvalidRequest(
                    "reassignment_in_progress", f"{shown(tp)} is being moved to {fixed}: wait for it, or cancel it"
                )
        for broker in gone:
            for tp in sorted(self._on[broker]):
                replicas = self._now[tp]
                free = [usable for usable in self._usable if usable not in replicas]
                if not free:
                    needed = f"{shown(tp)} needs {len(replicas)} replicas"
                    raise InvalidRequest(
                        "invalid_request", f"{needed}, and only {len(self._usable)} live brokers would stay"
                    )
                held = {self._racks[other] for other in replicas if other != broker}
                self._replace(tp, broker, min(free, key=lambda b: (self._racks[b] in held, self._count[b], b)))
                if self._before[tp][0] == broker:
                    self._lead_with_the_least_laden(tp)

    def _lead_with_the_least_laden(self, tp: TopicPartition) -> None:
        """Make the least laden leader among the remaining replicas the preferred one, rather than the newcomer."""
        replicas = self._now[tp]
        stays = [broker for broker in replicas if broker in self._usable]
        self._lead(replicas, min(stays, key=lambda broker: (self._leads[broker], broker)))

    def _replace(self, tp: TopicPartition, out: BrokerId, into: BrokerId) -> None:
        replicas = self._now[tp]
        place = replicas.index(out)
        replicas[place] = into
        del self._on[out][tp]
        self._on[into][tp] = None
        self._count[out] -= 1
        self._count[into] += 1
        if place == 0:
            self._leads[out] -= 1
            self._leads[into] += 1

    # --- Leaders ---

    def even_leaders(self) -> None:
        """Move leaderships from the broker with the most to the one with the fewest, through others if necessary, until
        they differ by at most one.
        """
        while True:
            for most in sorted(self._usable, key=lambda broker: (-self._leads[broker], broker)):
                if self._pass_on(most):
                    break
            else:
                return

    def _pass_on(self, most: BrokerId) -> bool:
        """Move one leadership from `most` to a broker with at least two fewer, along the shortest chain."""
        came_by: dict[BrokerId, tuple[BrokerId, TopicPartition] | None] = {most: None}
        queue = deque([most])
        while queue:
            broker = queue.popleft()
            if self._leads[most] - self._leads[broker] >= 2:
                self._follow_back(broker, came_by)
                return True
            for tp in self._on[broker]:
                replicas = self._now[tp]
                if replicas[0] != broker:
                    continue
                for peer in replicas[1:]:
                    if peer not in came_by and peer in self._usable:
                        came_by[peer] = (broker, tp)
                        queue.append(peer)
        return False

    def _follow_back(
        self, broker: BrokerId, came_by: Mapping[BrokerId, tuple[BrokerId, TopicPartition] | None]
    ) -> None:
        step = came_by[broker]
        while step is not None:
            before, tp = step
            self._lead(self._now[tp], broker)
            broker, step = before, came_by[before]

    def _lead(self, replicas: list[BrokerId], leader: BrokerId) -> None:
        self._leads[replicas[0]] -= 1
        self._leads[leader] += 1
        place = replicas.index(leader)
        replicas[0], replicas[place] = leader, replicas[0]
