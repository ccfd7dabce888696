"""The bound on the series of one metric: partitions are joined by topic, and further topics under one name. Pure.

The names for joined series cannot be those of topics or groups that exist: topics have no brackets, and the name of a
group with brackets is only joined with itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

ALL_PARTITIONS = "(all)"
OTHERS = "(other)"


class Series:
    """The labels under which topics and partitions are shown."""

    def __init__(self, most: int, *, by_topic: bool) -> None:
        """`most`: series of one metric. `by_topic`: partitions are always joined."""
        self._most = most
        self._by_topic = by_topic
        self._shown: Collection[str] | None = None
        self.joined = 0
        """Series that were joined with others since `begin`."""

    def begin(self, partitions: int, topics: Iterable[str]) -> None:
        """Decide for this many partitions of these topics."""
        self.joined = 0
        self.by_partition = not self._by_topic and partitions <= self._most
        names = sorted(set(topics))
        self._shown = None if len(names) < self._most else frozenset(names[: self._most - 1])
        if not self.by_partition:
            self.joined += max(0, partitions - min(len(names), self._most))

    by_partition = True
    """Whether each partition has a series of its own."""

    def topic(self, name: str) -> str:
        """Return the label of a topic."""
        return name if self._shown is None or name in self._shown else OTHERS

    def labels(self, topic: str, partition: str) -> tuple[str, str]:
        """Return the labels of a partition."""
        return (topic, partition) if self.by_partition else (self.topic(topic), ALL_PARTITIONS)
