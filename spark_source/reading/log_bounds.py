"""What a query knows of the topics it reads: their ids, their partitions, and where each log begins and ends. Pure.

An *end* is the last stable offset that the partition's leader told: what lies below is committed, and stays. It only
rises, in one life of a topic. So a lower end is first taken for the word of a leader that does not know better yet (it
was elected a moment ago), and becomes the truth when nobody has said otherwise for `END_GRACE_S`. Kafka's connector
takes the first such answer for lost data, and has false alarms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

END_GRACE_S = 15.0
"""Seconds for which an end may seem to have gone back: several elections."""


class PartitionBounds(NamedTuple):
    """Offsets in `[start, end)` can be read."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TopicBounds:
    """One topic that is read, with those of its partitions that are."""

    name: str
    topic_id: str
    """32 hexadecimal digits: a topic that was deleted and created again has others."""
    partitions: Mapping[int, PartitionBounds]


Picture: TypeAlias = Mapping[str, TopicBounds]
"""By name."""


class _Lower(NamedTuple):
    """An answer below the known end."""

    end: int
    since: float


class KnownEnds:
    """The ends that were known, so that an answer can be held against them."""

    def __init__(self) -> None:
        self._ends: dict[tuple[str, int], int] = {}
        """(topic id, partition) → end."""
        self._lower: dict[tuple[str, int], _Lower] = {}

    def expect(self, positions: Iterable[tuple[str, int, int]]) -> None:
        """(topic id, partition, offset): a checkpoint says that the log reached so far."""
        for topic_id, partition, offset in positions:
            key = topic_id, partition
            self._ends[key] = max(self._ends.get(key, 0), offset)

    def judge(self, topic_id: str, partition: int, end: int, now: float) -> int:
        """The end to go by, when a leader says `end`. `now`: seconds of a clock that only rises."""
        key = topic_id, partition
        known = self._ends.get(key, 0)
        if end >= known:
            self._lower.pop(key, None)
            self._ends[key] = end
            return end
        lower = self._lower.get(key)
        if lower is None:
            lower = _Lower(end, now)
        self._lower[key] = _Lower(max(end, lower.end), lower.since)
        if now - lower.since < END_GRACE_S:
            return known
        del self._lower[key]
        self._ends[key] = end
        return end

    def doubted(self) -> bool:
        """Whether some answer lies below what was known: ask again soon."""
        return bool(self._lower)

    def forget_except(self, topic_ids: Iterable[str]) -> None:
        """Topics that are not read any more."""
        kept = set(topic_ids)
        self._ends = {key: end for key, end in self._ends.items() if key[0] in kept}
        self._lower = {key: lower for key, lower in self._lower.items() if key[0] in kept}
