"""A streaming query's offset: the JSON that Spark keeps in the checkpoint and hands back. Pure.

    {"v": 1, "id": {"orders": "<32 hex>"}, "base": {"orders": {"0": 0}}, "t": {"orders": {"0": 17}}}

`t` is the offset up to which each partition has been read (exclusive). `id` identifies the topic to which these numbers
belong: a topic that was deleted and created again has another id.

`base` is the offset at which the query *began* in a partition. If a driver dies after it has planned the first
micro-batch and before that is committed, Spark requests the initial offset again, and reads from the new answer to the
old end. If the starting offset is "latest", the records that arrived in between would be skipped silently. So every
offset carries the start that was resolved first, and a range whose start is still the query's own start begins there
(`planned_ranges`). It is dropped for a partition once a micro-batch has advanced beyond it.

Spark compares offsets as text, so keys are sorted: equal offsets have equal text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from raftlog.errors import InvalidRequest
from spark_source.options.values import Positions, positions

VERSION = 1
_TOPIC_ID = re.compile("[0-9a-f]{32}")


class PartitionRange(NamedTuple):
    """Offsets `[start, end)` of one partition of the topic with this id. Offsets without a record count like others."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition} [{self.start}, {self.end})"

    @property
    def size(self) -> int:
        return max(0, self.end - self.start)


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """The offset of a streaming query; `ends` is `t` in the JSON."""

    topic_ids: Mapping[str, str]
    base: Positions
    ends: Positions

    def to_json(self) -> dict[str, Any]:
        """Return the offset as Spark stores it."""
        return {
            "v": VERSION,
            "id": dict(sorted(self.topic_ids.items())),
            "base": _to_json(self.base),
            "t": _to_json(self.ends),
        }

    @staticmethod
    def from_json(document: object) -> SourceOffset:
        """Parse Spark's JSON. Raises `InvalidRequest` if another source wrote it, or a later version of this one."""
        if not isinstance(document, Mapping):
            raise _not_ours("it is not a JSON object")
        version = document.get("v")
        if version != VERSION:
            raise _not_ours(f"its version is {version!r}, and only {VERSION} is supported")
        ids = document.get("id")
        if not isinstance(ids, Mapping) or not all(_is_id(name, topic_id) for name, topic_id in ids.items()):
            raise _not_ours("its topic ids are not valid")
        ends = _from_json(document.get("t"), "t")
        if set(ends) != set(ids):
            raise _not_ours("it names topics without their ids, or ids without topics")
        return SourceOffset(dict(ids), _from_json(document.get("base"), "base"), ends)

    def positions(self) -> Iterator[tuple[str, str, int, int]]:
        """Iterate over (topic, topic id, partition, offset), in order."""
        for topic, partitions in sorted(self.ends.items()):
            for partition, offset in sorted(partitions.items()):
                yield topic, self.topic_ids[topic], partition, offset

    def end_of(self, topic: str, topic_id: str, partition: int) -> int | None:
        """Return the offset up to which that partition of that topic was read; None if it was not read."""
        if self.topic_ids.get(topic) != topic_id:
            return None
        return self.ends[topic].get(partition)

    def base_of(self, topic: str, partition: int) -> int | None:
        """Return the offset at which the query began, as long as it is kept."""
        return self.base.get(topic, {}).get(partition)


def planned_ranges(start: SourceOffset, end: SourceOffset) -> list[PartitionRange]:
    """Return the ranges between two offsets, in order. The end offset alone determines the partitions and their
    topics."""
    found = []
    for topic, topic_id, partition, until in end.positions():
        begin = start.end_of(topic, topic_id, partition)
        base = end.base_of(topic, partition)
        if begin is None or begin == start.base_of(topic, partition):
            begin = base if base is not None else begin
        if begin is None:
            # It was neither read before nor has a start of its own: this source writes no such offset.
            raise _not_ours(f"it has no starting offset of {topic}/{partition}")
        if begin < until:
            found.append(PartitionRange(topic, topic_id, partition, begin, until))
    return found


def _to_json(positions: Positions) -> dict[str, dict[str, int]]:
    return {
        topic: {str(partition): offset for partition, offset in sorted(partitions.items())}
        for topic, partitions in sorted(positions.items())
        if partitions
    }


def _from_json(document: object, name: str) -> dict[str, dict[int, int]]:
    try:
        return positions(document)
    except ValueError as error:
        raise _not_ours(f"its {name!r} {error}") from None


def _is_id(name: object, topic_id: object) -> bool:
    return isinstance(name, str) and isinstance(topic_id, str) and _TOPIC_ID.fullmatch(topic_id) is not None


def _not_ours(why: str) -> InvalidRequest:
    return InvalidRequest(
        "invalid_request",
        f"the checkpoint holds an offset that this source cannot read: {why}. Another source wrote it, or a newer one",
    )
