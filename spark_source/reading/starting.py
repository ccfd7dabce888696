"""Where a query is to begin, and a batch query to end, as its options say: turned into offsets. Pure.

Kafka's options, in Kafka's order of precedence: one timestamp for all, timestamps by partition, offsets (`earliest`,
`latest`, or JSON in which -2 and -1 mean those). JSON must name every partition that is read, and no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from raftlog.errors import InvalidRequest
from spark_source.options.values import EARLIEST, LATEST, Positions

from .log_bounds import PartitionBounds, Picture

NO_RECORD = -1
"""No record is as late as was asked for."""


class TimeQuery(NamedTuple):
    """Which offset is asked for: the first record at or after that time."""

    topic: str
    partition: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Where:
    """What one end of a query's range is. Exactly one of the first three is set."""

    option: str
    """The option that says so, for errors."""
    everywhere: int | None = None
    """`EARLIEST` or `LATEST`."""
    offsets: Positions | None = None
    timestamps: Positions | None = None
    timestamp_ms: int | None = None
    """Of all partitions."""
    error_without_match: bool = False
    """Where no record is as late: fail, instead of taking the end."""


def time_queries(where: Where, picture: Picture) -> list[TimeQuery]:
    """What has to be asked before `resolve`. Raises `InvalidRequest`."""
    if where.timestamp_ms is not None:
        return [TimeQuery(name, number, where.timestamp_ms) for name, number in _places(picture)]
    if where.timestamps is None:
        return []
    _check_names_all(where, where.timestamps, picture)
    return [TimeQuery(name, number, where.timestamps[name][number]) for name, number in _places(picture)]


def resolve(where: Where, picture: Picture, times: Mapping[TimeQuery, int]) -> dict[str, dict[int, int]]:
    """Topic → partition → offset, of all partitions in the picture. `times`: the answers to `time_queries`.

    What JSON says is taken as it is, also where it is not in the log. Raises `InvalidRequest`.
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
    missing = "does not name" if read - asked else "names what is not read:"
    raise InvalidRequest(
        "invalid_config",
        f"option {where.option} must name every partition that is read, and no other (-2: earliest, -1: latest); it "
        f"{missing} {shown}",
    )
