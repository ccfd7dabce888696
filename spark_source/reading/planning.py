"""The next offset of a streaming query, from its position and the bounds of the logs. Pure.

A micro-batch takes at most `maxOffsetsPerTrigger` offsets, shared by backlog, and waits for at least
`minOffsetsPerTrigger`.

The maximum is exact, unless more partitions have records than it allows: then each of them gets one offset, so that
none starves behind the large ones. (Kafka's connector rounds, and may take more.)
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple, TypeVar

from spark_source.options.values import Positions

from .log_bounds import Picture, TopicBounds
from .offsets import SourceOffset

Key = TypeVar("Key", bound=Hashable)


def admit(backlogs: Mapping[Key, int], limit: int | None) -> dict[Key, int]:
    """Return the share of each backlog; all of it if `limit` is None. Every backlog gets at least one offset."""
    waiting = {key: backlog for key, backlog in backlogs.items() if backlog > 0}
    total = sum(waiting.values())
    if limit is None or total <= limit:
        return waiting
    shares = dict.fromkeys(waiting, 1)
    spare, rest = limit - len(waiting), total - len(waiting)
    if spare <= 0:
        return shares
    fractions: list[tuple[int, Key]] = []
    for key, backlog in waiting.items():
        share, fraction = divmod(spare * (backlog - 1), rest)
        shares[key] += share
        fractions.append((fraction, key))
    left = limit - sum(shares.values())
    for _, key in sorted(fractions, key=lambda one: -one[0])[:left]:
        shares[key] += 1
    return shares


class TriggerGate:
    """`minOffsetsPerTrigger` and `maxTriggerDelay`: closed until enough offsets are available or the delay is over."""

    def __init__(self, min_offsets: int | None, max_delay_ms: int) -> None:
        self._min_offsets = min_offsets
        self._max_delay_ms = max_delay_ms
        self._opened_at_ms: int | None = None

    def opens(self, backlog: int, now_ms: int) -> bool:
        """Return whether a micro-batch of this size may start. `now_ms`: monotonic. The first one may."""
        if self._min_offsets is None:
            return True
        late = self._opened_at_ms is None or now_ms - self._opened_at_ms >= self._max_delay_ms
        if backlog <= 0 or (backlog < self._min_offsets and not late):
            return False
        self._opened_at_ms = now_ms
        return True


class _Place(NamedTuple):
    """A partition to read next."""

    topic: str
    partition: int


class _Next(NamedTuple):
    """A partition's position, its next readable offset, and the log's end."""

    at: int
    begin: int
    """`at`, if that offset is in the log."""
    end: int


def begin(picture: Picture, starts: Positions) -> SourceOffset:
    """Return a query's first offset, before anything is read."""
    return SourceOffset({name: topic.topic_id for name, topic in picture.items()}, starts, starts)


def backlog(start: SourceOffset, picture: Picture) -> int:
    """The number of readable offsets."""
    return sum(found.end - found.begin for found in _next(start, picture).values())


def advance(start: SourceOffset, picture: Picture, limit: int | None) -> SourceOffset:
    """Return the offset after `start`: all readable offsets, or about `limit` of them. `start` itself if nothing
    changes.

    New partitions start at their first record, and so do topics that were created again.
    """
    places = _next(start, picture)
    shares = admit({place: found.end - found.begin for place, found in places.items()}, limit)
    ends: dict[str, dict[int, int]] = {}
    base: dict[str, dict[int, int]] = {}
    for place, found in places.items():
        share = shares.get(place, 0)
        ends.setdefault(place.topic, {})[place.partition] = found.begin + share
        began = _base(start, picture[place.topic], place, found)
        if began is not None:
            base.setdefault(place.topic, {})[place.partition] = began
    ids = {name: picture[name].topic_id for name in ends}
    if ids == start.topic_ids and ends == start.ends:
        return start
    return SourceOffset(ids, base, ends)


def _base(start: SourceOffset, topic: TopicBounds, place: _Place, found: _Next) -> int | None:
    """Return the base to carry along; None once the query has moved beyond it."""
    read = start.end_of(topic.name, topic.topic_id, place.partition)
    if read is None:
        return found.at
    began = start.base_of(place.topic, place.partition)
    return began if began == read else None


def _next(start: SourceOffset, picture: Picture) -> Mapping[_Place, _Next]:
    found = {}
    for name, topic in sorted(picture.items()):
        for partition, bounds in sorted(topic.partitions.items()):
            read = start.end_of(name, topic.topic_id, partition)
            at = bounds.start if read is None else read
            begin = min(max(at, bounds.start), bounds.end)
            found[_Place(name, partition)] = _Next(at, begin, bounds.end)
    return found
