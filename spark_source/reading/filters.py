"""Filter pushdown of a batch query: the part of the log that its filters need. Pure.

Spark passes the filters that it would test on every row. Conditions on topic, partition and offset select ranges and
need no further test. A lower bound of the timestamp selects the start: all records before the first one that is late
enough are earlier. Records after it may also be earlier, so Spark still tests that filter; an upper bound selects
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from spark_source.options.values import MAX_OFFSET

from .log_bounds import Picture, TopicBounds
from .offsets import PartitionRange

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER_NULL = frozenset({"topic", "partition", "offset", "timestamp", "timestampType"})


@dataclass(frozen=True, slots=True)
class Restrictions:
    """The part of the log that is left after the filters so far."""

    topics: frozenset[str] | None = None
    topic_prefixes: tuple[str, ...] = ()
    partitions: frozenset[int] | None = None
    start: int = 0
    end: int = MAX_OFFSET
    since_ms: int | None = None
    """Records before the first one at or after this time are skipped."""

    def choose(self, picture: Picture) -> dict[str, TopicBounds]:
        """Return the topics and partitions that are left."""
        found = {}
        for name, topic in picture.items():
            wanted = self.topics is None or name in self.topics
            if not wanted or not all(map(name.startswith, self.topic_prefixes)):
                continue
            kept = {
                partition: bounds
                for partition, bounds in topic.partitions.items()
                if self.partitions is None or partition in self.partitions
            }
            if kept:
                found[name] = replace(topic, partitions=kept)
        return found

    def cut(self, one: PartitionRange) -> PartitionRange:
        """Return the part of a range that is left, which may be empty."""
        return one._replace(start=max(one.start, self.start), end=min(one.end, self.end))


def push(filters: Iterable[Any], so_far: Restrictions) -> tuple[Restrictions, list[Any]]:
    """Return the restrictions by Spark's filter objects, and the filters that Spark must still test."""
    unhandled = []
    for one in filters:
        so_far, done = _push(one, so_far)
        if not done:
            unhandled.append(one)
    return so_far, unhandled


def _push(one: Any, so_far: Restrictions) -> tuple[Restrictions, bool]:
    """Apply a filter by the name of its class, so that this module does not import Spark."""
    kind = type(one).__name__
    attribute: tuple[str, ...] = getattr(one, "attribute", ())
    column = attribute[0] if len(attribute) == 1 else None
    if kind == "IsNotNull":
        return so_far, column in _NEVER_NULL
    value: Any = getattr(one, "value", None)
    values = value if kind == "In" else (value,)
    is_choice = kind in ("EqualTo", "EqualNullSafe", "In")
    if column == "topic" and all(isinstance(one, str) for one in values):
        if is_choice:
            return replace(so_far, topics=_both(so_far.topics, values)), True
        if kind == "StringStartsWith":
            return replace(so_far, topic_prefixes=(*so_far.topic_prefixes, value)), True
    if column == "partition" and is_choice and all(map(_is_whole, values)):
        return replace(so_far, partitions=_both(so_far.partitions, values)), True
    if column == "offset" and _is_whole(value):
        return _offset(kind, value, so_far)
    if column == "timestamp" and isinstance(value, datetime):
        return _timestamp(kind, value, so_far), False
    return so_far, False


def _offset(kind: str, value: int, so_far: Restrictions) -> tuple[Restrictions, bool]:
    bounds = {
        "EqualTo": (value, value + 1),
        "EqualNullSafe": (value, value + 1),
        "GreaterThanOrEqual": (value, MAX_OFFSET),
        "GreaterThan": (value + 1, MAX_OFFSET),
        "LessThanOrEqual": (0, value + 1),
        "LessThan": (0, value),
    }.get(kind)
    if bounds is None:
        return so_far, False
    return replace(so_far, start=max(so_far.start, bounds[0]), end=min(so_far.end, bounds[1])), True


def _timestamp(kind: str, value: datetime, so_far: Restrictions) -> Restrictions:
    if kind not in ("EqualTo", "EqualNullSafe", "GreaterThan", "GreaterThanOrEqual") or value.tzinfo is None:
        return so_far
    # The log counts milliseconds. A record of this millisecond may be later than `value`, so it is kept.
    since_ms = (value - _EPOCH) // timedelta(milliseconds=1)
    return replace(so_far, since_ms=max(so_far.since_ms or 0, since_ms, 0))


def _both(so_far: frozenset[Any] | None, values: Iterable[Any]) -> frozenset[Any]:
    return frozenset(values) if so_far is None else so_far & frozenset(values)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
