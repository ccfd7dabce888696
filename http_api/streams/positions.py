"""The partitions of one stream and where it stands in each: a pure core.

A topic is one life of its name: a topic that was deleted and created again leaves with its id, and joins with the new
one. A partition that joins later is read from its first record, so nothing of it is skipped.

Invariant: a position of a partition never changes except by `advance` and `resume_at`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from raftlog.model import TopicId, TopicPartition, TopicRecord
from raftlog.wire import TIMESTAMP_EARLIEST

from .cursor import UNKNOWN, encode_cursor


@dataclass(frozen=True, slots=True)
class Left:
    """A topic that the stream does not read any more. `name` None: only the cursor named it, by its id."""

    topic_id: TopicId
    name: str | None


class StreamPositions:
    """Where one stream stands."""

    def __init__(
        self,
        start: int,
        offsets: Mapping[tuple[str, int], int] | None = None,
        cursor: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """`start`: a time in ms, `TIMESTAMP_EARLIEST` or `TIMESTAMP_LATEST`, from which partitions are read that are
        there at the beginning. `offsets`: topic name and partition → first offset instead. `cursor`: of a stream that
        this one continues; what it does not name has joined since."""
        self._start = start
        self._offsets = dict(offsets or {})
        self._cursor = cursor
        self._names: dict[TopicId, str] = {}
        self._positions: dict[TopicPartition, int] = {}
        self._starts: dict[TopicPartition, int] = {}
        """The times at which partitions without a position begin."""
        self._rests_until: dict[TopicPartition, float] = {}
        self._joined: list[TopicPartition] = []
        """Partitions that have joined with a position and were not taken."""
        self._turn = 0
        self._has_begun = False

    def __len__(self) -> int:
        return len(self._positions)

    @property
    def topic_count(self) -> int:
        """The number of topics."""
        return len(self._names)

    @property
    def names(self) -> Sequence[str]:
        """The names of the topics."""
        return list(self._names.values())

    def name_of(self, topic_id: TopicId) -> str:
        """Return the name of a topic of the stream."""
        return self._names[topic_id]

    def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record, or `UNKNOWN`."""
        return self._positions[partition]

    def cursor(self) -> str:
        """Return the cursor."""
        return encode_cursor(self._positions)

    # --- Which partitions --------------------------------------------------------------------------------------------

    def match(self, topics: Iterable[TopicRecord]) -> list[Left]:
        """Read these topics now, with all their partitions; returns those that have left."""
        wanted = {topic.topic_id: topic for topic in topics}
        left = [Left(topic_id, name) for topic_id, name in self._names.items() if topic_id not in wanted]
        for one in left:
            self._leave(one.topic_id)
        if not self._has_begun and self._cursor is not None:
            gone = {partition.topic_id for partition in self._cursor} - wanted.keys()
            left += [Left(topic_id, None) for topic_id in sorted(gone)]
        for topic in wanted.values():
            self._names[topic.topic_id] = topic.name
            for number in range(topic.partition_count):
                partition = TopicPartition(topic.topic_id, number)
                if partition not in self._positions:
                    self._join(partition, topic.name)
        self._has_begun = True
        return left

    def _join(self, partition: TopicPartition, name: str) -> None:
        position, start = UNKNOWN, TIMESTAMP_EARLIEST
        if not self._has_begun and self._cursor is not None:
            position = self._cursor.get(partition, UNKNOWN)
            start = self._start if partition in self._cursor else TIMESTAMP_EARLIEST
        elif not self._has_begun:
            position, start = self._offsets.get((name, partition.partition), UNKNOWN), self._start
        self._positions[partition] = position
        if position == UNKNOWN:
            self._starts[partition] = start
        else:
            self._joined.append(partition)

    def take_joined(self) -> list[TopicPartition]:
        """Return the partitions that have joined with a known position since the last call."""
        joined, self._joined = self._joined, []
        return joined

    def _leave(self, topic_id: TopicId) -> None:
        del self._names[topic_id]
        for partition in [one for one in self._positions if one.topic_id == topic_id]:
            del self._positions[partition]
            self._starts.pop(partition, None)
            self._rests_until.pop(partition, None)

    # --- Where in them -----------------------------------------------------------------------------------------------

    def without_start(self, now: float) -> list[tuple[TopicPartition, int]]:
        """Return the partitions whose start must be looked up, with its time, except those that rest."""
        return [(one, time) for one, time in self._starts.items() if self._rests_until.get(one, now) <= now]

    def resume_at(self, partition: TopicPartition, offset: int) -> None:
        """Read a partition from this offset on: its start was found, or the log does not have its position."""
        self._positions[partition] = offset
        self._starts.pop(partition, None)

    def advance(self, partition: TopicPartition, offset: int) -> None:
        """Note that the records below `offset` were sent."""
        assert offset >= self._positions[partition] != UNKNOWN, "a stream never goes back"
        self._positions[partition] = offset

    # --- What to do next ---------------------------------------------------------------------------------------------

    def rest(self, partition: TopicPartition, until: float) -> None:
        """Do not ask for a partition until then: it has failed."""
        self._rests_until[partition] = until

    def wakes_at(self, now: float) -> float | None:
        """Return the time at which the next partition has rested, or None if none rests."""
        self._rests_until = {one: until for one, until in self._rests_until.items() if until > now}
        return min(self._rests_until.values(), default=None)

    def to_fetch(self, now: float) -> list[tuple[TopicPartition, int]]:
        """Return the partitions to ask for, with their positions: each time another one first, so that each gets its
        turn if an answer has not room for all."""
        found = [
            (one, position)
            for one, position in self._positions.items()
            if position != UNKNOWN and self._rests_until.get(one, now) <= now
        ]
        if not found:
            return []
        self._turn += 1
        first = self._turn % len(found)
        return found[first:] + found[:first]
