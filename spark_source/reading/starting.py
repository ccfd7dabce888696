"""Starting offsets of a query, and ending offsets of a batch query, from its options. Pure.

Kafka's options in Kafka's order of precedence: one timestamp for all, timestamps by partition, offsets (`earliest`,
`latest`, or JSON with -2 and -1 for those). JSON must name exactly the partitions that are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from raftlog.errors import InvalidRequest
from spark_source.options.values import EARLIEST, LATEST, Positions

from .log_bounds import PartitionBounds, Picture

NO_RECORD = -1
"""The answer if no record is as late as the given time."""


class TimeQuery(NamedTuple):
    """A query for the first record at or after a time."""

    topic: str
    partition: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Where:
    """One end of a query's range. Exactly one of the first three fields is set."""

    option: str
    """The option that sets it, for errors."""
    everywhere: int | None = None
    """`EARLIEST` or `LATEST`."""
    offsets: Positions | None = None
    timestamps: Positions | None = None
    timestamp_ms: int | None = None
    """The timestamp for all partitions."""
    error_without_match: bool = False
    """Fail if no record is as late, instead of taking the end."""


def time_queries(where: Where, picture: Picture) -> list[TimeQuery]:
    """Return the time queries that `resolve` needs. Raises `InvalidRequest`."""
    if where.timestamp_ms is not None:
        return [TimeQuery(name, number, where.timestamp_ms) for name, number in _places(picture)]
    if where.timestamps is None:
        return []
    _check_names_all(where, where.timestamps, picture)
    return [TimeQuery(name, number, where.timestamps[name][number]) for name, number in _places(picture)]


def resolve(where: Where, picture: Picture, times: Mapping[TimeQuery, int]) -> dict[str, dict[int, int]]:
    """Return topic → partition → offset for all partitions in the picture. `times`: the answers to `time_queries`.

    Offsets from JSON are taken as given, even outside the log. Raises `InvalidRequest`.
    """
    found: dict[str, dict[int, int]] = {name: {} for name in picture}
    if where.everywhere is not None or where.offsets is not None:
        if where.offsets is not None:
            _check_names_all(where, where.offsets, picture)
        for name, partition in _places(picture):
            asked = where.everywhere if where.offsets is None else where.offsets[name][partition]
            assert asked is not None
            found[name][partition] = _offset(asked, picture[name].partitions[partition])
        return found
    for query in time_queries(where, picture):
        offset = times[query]
        if offset == NO_RECORD:
            if where.error_without_match:
                raise InvalidRequest(
                    "invalid_config",
                    f"option {where.option}: {query.topic}/{query.partition} has no record at or after "
                    f"{query.timestamp_ms}. With startingOffsetsByTimestampStrategy=latest the query begins at its end",
                )
            offset = picture[query.topic].partitions[query.partition].end
        found[query.topic][query.partition] = offset
    return found


def _offset(asked: int, bounds: PartitionBounds) -> int:
    return bounds.start if asked == EARLIEST else bounds.end if asked == LATEST else asked


def _places(picture: Picture) -> list[tuple[str, int]]:
    return [(name, partition) for name, topic in sorted(picture.items()) for partition in sorted(topic.partitions)]


def _check_names_all(where: Where, named: Positions, picture: Picture) -> None:
    asked = {(name, partition) for name, partitions in named.items() for partition in partitions}
    read = set(_places(picture))
    if asked == read:
        return
    shown = ", ".join(f"{name}/{partition}" for name, partition in sorted(asked ^ read)[:10])
    missing = "does not name" if read - asked else "names partitions that are not read:"
    raise InvalidRequest(
        "invalid_config",
        f"option {where.option} must name every partition that is read, and no other (-2: earliest, -1: latest); it "
        f"{missing} {shown}",
    )
