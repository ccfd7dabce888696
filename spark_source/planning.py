"""How far a streaming query reads next: from where it is and what the cluster has to the next offset. Pure.

What is *not* here: what a micro-batch may take (`admission.py`), what is lost (`losses.py`): by the time
these are asked, the query either failed or goes on with what is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .admission import admit
from .log_bounds import Picture, TopicBounds
from .offsets import SourceOffset
from .option_values import Positions


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
