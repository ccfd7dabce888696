"""How far a streaming query reads next: from where it is and what the cluster has to the next offset. Pure.

How much a micro-batch takes: a greatest number of offsets, shared out by backlog; a least number, waited for. Pure.

`maxOffsetsPerTrigger` is kept exactly, unless more partitions have records than it allows: each of them gets one then,
so that none waits for ever behind the large ones. (Kafka's connector rounds, and may take more.)
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple, TypeVar

from spark_source.options.values import Positions

from .log_bounds import Picture, TopicBounds
from .offsets import SourceOffset

Key = TypeVar("Key", bound=Hashable)


def admit(backlogs: Mapping[Key, int], limit: int | None) -> dict[Key, int]:
    """Of each backlog how much; `limit` None: all of it. Everybody with a backlog gets something."""
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
    """`minOffsetsPerTrigger` and `maxTriggerDelay`: closed until enough is there, or it was closed for long."""

    def __init__(self, min_offsets: int | None, max_delay_ms: int) -> None:
        self._min_offsets = min_offsets
        self._max_delay_ms = max_delay_ms
        self._opened_at_ms: int | None = None

    def opens(self, backlog: int, now_ms: int) -> bool:
        """Whether a micro-batch may begin with so many offsets. `now_ms`: a clock
        that only rises. The first one may."""
        if self._min_offsets is None:
            return True
        late = self._opened_at_ms is None or now_ms - self._opened_at_ms >= self._max_delay_ms
        if backlog <= 0 or (backlog < self._min_offsets and not late):
            return False
        self._opened_at_ms = now_ms
        return True


class _Place(NamedTuple):
    """A partition to read on."""

    topic: str
    partition: int


class _Next(NamedTuple):
    """Where it is, from where it can be read on, and the log's end."""

    at: int
    begin: int
    """`at`, unless that is not in the log."""
    end: int


def begin(picture: Picture, starts: Positions) -> SourceOffset:
    """A query's first offset: nothing is read yet."""
    return SourceOffset({name: topic.topic_id for name, topic in picture.items()}, starts, starts)


def backlog(start: SourceOffset, picture: Picture) -> int:
    """Offsets that could be read now."""
    return sum(found.end - found.begin for found in _next(start, picture).values())


def advance(start: SourceOffset, picture: Picture, limit: int | None) -> SourceOffset:
    """The offset after `start`: all that is there, or about `limit` offsets of it. `start` itself where it is the same.

    Partitions that were not read before begin at their first record, and so do topics that were created anew.
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
    """The base to carry on; None where the query has moved beyond it."""
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
