"""The topics of a query with their ids, partitions and the bounds of each log. Pure.

An *end* is the last stable offset that a partition's leader reported: everything below it is committed and stays. It
never falls for one topic id. So a lower end is first attributed to a newly elected leader that lags; it is accepted if
no leader has reported a higher one for `END_GRACE_S`. Kafka's connector takes the
first such answer as data loss, and raises false alarms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

END_GRACE_S = 15.0
"""Seconds for which an end may appear to have fallen: several elections."""


class PartitionBounds(NamedTuple):
    """The readable offsets `[start, end)` of a partition."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TopicBounds:
    """One topic that is read, with its partitions that are read."""

    name: str
    topic_id: str
    """32 hexadecimal digits; a topic that was deleted and created again has another id."""
    partitions: Mapping[int, PartitionBounds]


Picture: TypeAlias = Mapping[str, TopicBounds]
"""Name → bounds of the topic."""


class _Lower(NamedTuple):
    """An answer below the known end."""

    end: int
    since: float


class KnownEnds:
    """The known ends, with which each answer is compared."""

    def __init__(self) -> None:
        self._ends: dict[tuple[str, int], int] = {}
        """(topic id, partition) → end."""
        self._lower: dict[tuple[str, int], _Lower] = {}

    def expect(self, positions: Iterable[tuple[str, int, int]]) -> None:
        """Record (topic id, partition, offset) of a checkpoint: the log has reached these offsets."""
        for topic_id, partition, offset in positions:
            key = topic_id, partition
            self._ends[key] = max(self._ends.get(key, 0), offset)

    def judge(self, topic_id: str, partition: int, end: int, now: float) -> int:
        """Return the end to use if a leader reports `end`. `now`: monotonic seconds."""
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
        """Whether some answer lies below the known end, so that it should be checked soon."""
        return bool(self._lower)

    def forget_except(self, topic_ids: Iterable[str]) -> None:
        """Forget all topics except these."""
        kept = set(topic_ids)
        self._ends = {key: end for key, end in self._ends.items() if key[0] in kept}
        self._lower = {key: lower for key, lower in self._lower.items() if key[0] in kept}
