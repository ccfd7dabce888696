"""The controller's housekeeping: it begins waiting moves and returns leadership to preferred leaders.

Both are level-triggered, bounded, and wait while anything urgent is in flight (`controller.py` asks them last).

`Moves`: of the requested reassignments, only as many copy data at a time as `MAX_MOVES_PER_BROKER` allows each
receiving broker. If all targets of a move are in sync and a departing replica leads, the leadership is handed over.

`PreferredLeaders` (KIP-460's preferred election, made automatic): a broker that was well for a while and leads too few
of the partitions that prefer it gets some of them back, `MAX_REBALANCED_AT_ONCE` a round.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from metadata.commands.fields import Election
from metadata.commands.replicas import MAX_REASSIGNMENTS_PER_COMMAND, BeginMoves, Move
from metadata.image.image import ClusterImage
from metadata.image.reassignments import MAX_MOVES_UNDER_WAY
from metadata.rules.elections import electable, is_live
from raftlog.model import BrokerId, Incarnation, PartitionRecord, TopicPartition

MAX_MOVES_PER_BROKER = 5
"""Partitions that a broker receives at a time: enough to keep its link busy, and each finishes the sooner."""

LOOK_EVERY_SECONDS = 0.5
"""The interval between looks at moves that could not begin or end: a broker may have returned."""

MAX_LOOKED_AT = 2_048
"""The bound for one call on waiting moves, on completing moves, and on partitions."""

REBALANCE_EVERY_SECONDS = 10.0
MAX_REBALANCED_AT_ONCE = 50
"""Elections in one round. Each interrupts its partition for some milliseconds: few at a time, never in a failover.
"""

DEFAULT_IMBALANCE_PERCENT = 10


class HeardOf(Protocol):
    """Elects the first candidate with a recent heartbeat."""

    def __call__(self, record: PartitionRecord, candidates: Sequence[BrokerId], now: float) -> Election | None: ...


class Moves:
    """Reassignments that may begin or complete."""

    def __init__(self, image: ClusterImage, heard_of: HeardOf) -> None:
        self._image = image
        self._heard_of = heard_of
        self._beginning = False
        """A command is in flight: its moves are not in the image yet."""
        self._to_look_at: list[TopicPartition] = []
        self._looked_at_version = -1
        self._ends_to_look_at: list[TopicPartition] = []
        self._ends_looked_at = (-1, -math.inf)
        self._look_again_at = -math.inf

    def begin(self, now: float) -> BeginMoves | None:
        """Return the next moves for which the receiving brokers have room."""
        if self._beginning or not self._image.reassigning or not self._has_reason_to_look(now):
            return None
        receiving = Counter(
            broker_id for tp in self._image.adding for broker_id in self._image.partitions[tp].adding_replicas
        )
        room = min(MAX_MOVES_UNDER_WAY - len(self._image.adding), MAX_REASSIGNMENTS_PER_COMMAND)
        moves: list[Move] = []
        for _ in range(min(MAX_LOOKED_AT, len(self._to_look_at))):
            if len(moves) >= room:
                break
            record = self._image.partitions.get(self._to_look_at.pop())
            if record is not None and self._may_begin(record, receiving):
                receiving.update(_additions(record))
                tp = record.topic_partition
                moves.append(Move(tp.topic_id, tp.partition, record.partition_epoch))
        self._beginning = bool(moves)
        return BeginMoves(tuple(moves)) if moves else None

    def settled(self) -> None:
        """Record that the last command's outcome is known, or never will be."""
        self._beginning = False
        self._looked_at_version = -1

    def hand_overs(self, now: float) -> Iterator[Election]:
        """Yield the hand-overs that complete moves wait for."""
        if not self._ends_to_look_at:
            version, looked_at = self._ends_looked_at
            if version == self._image.reassignments_version and now < looked_at + LOOK_EVERY_SECONDS:
                return
            self._ends_looked_at = (self._image.reassignments_version, now)
            self._ends_to_look_at = list(self._image.moving)[::-1]
        for _ in range(min(MAX_LOOKED_AT, len(self._ends_to_look_at))):
            record = self._image.partitions.get(self._ends_to_look_at.pop())
            if record is None or not record.is_moving:
                continue
            target = record.target_replicas
            if record.has_leader and record.leader not in target and set(target).issubset(record.isr):
                able = electable(record, self._image.brokers)
                election = self._heard_of(record, [candidate for candidate in target if candidate in able], now)
                if election is not None:
                    yield election

    def _has_reason_to_look(self, now: float) -> bool:
        if self._to_look_at:
            return True
        if self._looked_at_version == self._image.reassignments_version and now < self._look_again_at:
            return False
        self._looked_at_version = self._image.reassignments_version
        self._look_again_at = now + LOOK_EVERY_SECONDS
        waiting = [tp for tp in self._image.reassigning if tp not in self._image.moving]
        self._to_look_at = waiting[::-1]
        return bool(waiting)

    def _may_begin(self, record: PartitionRecord, receiving: Counter[BrokerId]) -> bool:
        """Return whether the move waits, its leader is there to fetch from, and each receiver is live with room."""
        if not record.target_replicas or record.is_moving or not record.has_leader:
            return False
        return all(
            receiving[broker_id] < MAX_MOVES_PER_BROKER and is_live(self._image.brokers, broker_id)
            for broker_id in _additions(record)
        )


def _additions(record: PartitionRecord) -> tuple[BrokerId, ...]:
    return tuple(broker_id for broker_id in record.target_replicas if broker_id not in record.replicas)


class _Pass(msgspec.Struct):
    """A pass over all partitions."""

    to_look_at: list[TopicPartition]
    preferred: Counter[BrokerId] = msgspec.field(default_factory=Counter)
    """Broker → the number of partitions that prefer it as leader."""
    elsewhere: list[TopicPartition] = []


def _is_elsewhere(record: PartitionRecord) -> bool:
    """Return whether another replica leads although the preferred leader is in sync.

    A partition under reassignment is skipped: the end of its move settles its leader.
    """
    first = record.replicas[0]
    return record.has_leader and record.leader != first and first in record.isr and not record.target_replicas


class PreferredLeaders:
    """Leaderships to return to preferred leaders."""

    def __init__(self, image: ClusterImage, heard_of: HeardOf, well_after: float, imbalance_percent: int) -> None:
        """`well_after`: seconds for which a broker must have been unfenced."""
        self._image = image
        self._heard_of = heard_of
        self._well_after = well_after
        self._imbalance_percent = imbalance_percent
        self._unfenced_since: dict[BrokerId, tuple[Incarnation, float]] = {}
        self._due_at: float | None = None
        self._pass: _Pass | None = None

    def note(self, broker_id: BrokerId, incarnation: Incarnation, fenced: bool, now: float) -> None:
        """Record a broker's state; called regularly for every broker."""
        if fenced:
            self._unfenced_since.pop(broker_id, None)
        elif self._unfenced_since.get(broker_id, (None, now))[0] != incarnation:
            self._unfenced_since[broker_id] = (incarnation, now)

    def elections(self, now: float) -> list[Election]:
        """Elect some preferred leaders that have been well for a while."""
        if self._due_at is None:
            self._due_at = now + REBALANCE_EVERY_SECONDS
        if now < self._due_at:
            return []
        if not self._look():
            return []
        self._due_at = now + REBALANCE_EVERY_SECONDS
        moves: list[Election] = []
        for record in self._imbalanced():
            preferred = record.replicas[0]
            short = self._image.brokers[preferred].short_of_room
            if not short and self._is_well(preferred, now) and preferred in electable(record, self._image.brokers):
                move = self._heard_of(record, (preferred,), now)
                moves += [move] if move is not None else []
            if len(moves) == MAX_REBALANCED_AT_ONCE:
                break
        return moves

    def _look(self) -> bool:
        """Continue the pass over all partitions by a bounded number; True if it is complete."""
        if self._pass is None:
            self._pass = _Pass(list(self._image.partitions))
        for _ in range(min(MAX_LOOKED_AT, len(self._pass.to_look_at))):
            record = self._image.partitions.get(self._pass.to_look_at.pop())
            if record is not None:
                self._pass.preferred[record.replicas[0]] += 1
                if _is_elsewhere(record):
                    self._pass.elsewhere.append(record.topic_partition)
        return not self._pass.to_look_at

    def _imbalanced(self) -> list[PartitionRecord]:
        """Return the partitions not led by their preferred leader, of brokers with too many of them."""
        found, self._pass = self._pass, None
        assert found is not None
        known = (self._image.partitions.get(topic_partition) for topic_partition in found.elsewhere)
        records = [record for record in known if record is not None and _is_elsewhere(record)]
        elsewhere = Counter(record.replicas[0] for record in records)
        limit = self._imbalance_percent
        return [r for r in records if elsewhere[r.replicas[0]] * 100 > limit * found.preferred[r.replicas[0]]]

    def _is_well(self, broker_id: BrokerId, now: float) -> bool:
        since = self._unfenced_since.get(broker_id)
        return since is not None and now - since[1] >= self._well_after
