"""A streaming query's offset: the JSON that Spark keeps in the checkpoint and hands back. Pure.

    {"v": 1, "id": {"orders": "<32 hex>"}, "base": {"orders": {"0": 0}}, "t": {"orders": {"0": 17}}}

`t` is where each partition has been read to (exclusive). `id` tells which life of the topic those numbers are about: a
topic that was deleted and created again has another.

`base` is where the query *began* in a partition. Spark asks for the initial offset once more when a driver died after
it had planned the first micro-batch and before that was committed; it then reads from the new answer to the old end. If
the first answer was "latest", and records have come since, they would be skipped without a word. So every offset
carries the start that was resolved first, and a range whose start is still the query's own start begins there
(`planned_ranges`). It is dropped for a partition once a micro-batch has moved beyond it.

Spark compares offsets as text: keys are sorted, and an offset that means the same is the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from raftlog.errors import InvalidRequest
from spark_source.options.values import MAX_OFFSET, Positions

VERSION = 1
_TOPIC_ID = re.compile("[0-9a-f]{32}")


class PartitionRange(NamedTuple):
    """Offsets `[start, end)` of one partition, in one life of its topic. Offsets without a record count like others."""

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
    """See above. `ends` is `t`."""

    topic_ids: Mapping[str, str]
    base: Positions
    ends: Positions

    def to_json(self) -> dict[str, Any]:
        """What Spark writes down."""
        return {
            "v": VERSION,
            "id": dict(sorted(self.topic_ids.items())),
            "base": _to_json(self.base),
            "t": _to_json(self.ends),
        }

    @staticmethod
    def from_json(document: object) -> SourceOffset:
        """Raises `InvalidRequest` for what no version of this source has written, or a later one."""
        if not isinstance(document, Mapping):
            raise _not_ours("it is no object")
        version = document.get("v")
        if version != VERSION:
            raise _not_ours(f"its version is {version!r}, and {VERSION} is known here")
        ids = document.get("id")
        if not isinstance(ids, Mapping) or not all(_is_id(name, topic_id) for name, topic_id in ids.items()):
            raise _not_ours("its topic ids are none")
        ends = _from_json(document.get("t"), "t")
        if set(ends) != set(ids):
            raise _not_ours("it names topics without their ids, or ids without topics")
        return SourceOffset(dict(ids), _from_json(document.get("base"), "base"), ends)

    def positions(self) -> Iterator[tuple[str, str, int, int]]:
        """(topic, topic id, partition, offset), in order."""
        for topic, partitions in sorted(self.ends.items()):
            for partition, offset in sorted(partitions.items()):
                yield topic, self.topic_ids[topic], partition, offset

    def end_of(self, topic: str, topic_id: str, partition: int) -> int | None:
        """How far that partition has been read, in that life of the topic; None where it has not been."""
        if self.topic_ids.get(topic) != topic_id:
            return None
        return self.ends[topic].get(partition)

    def base_of(self, topic: str, partition: int) -> int | None:
        """Where the query began, as long as it is carried."""
        return self.base.get(topic, {}).get(partition)


def planned_ranges(start: SourceOffset, end: SourceOffset) -> list[PartitionRange]:
    """What lies between two offsets, in order. The end alone says which partitions, and of which topics."""
    found = []
    for topic, topic_id, partition, until in end.positions():
        begin = start.end_of(topic, topic_id, partition)
        base = end.base_of(topic, partition)
        if begin is None or begin == start.base_of(topic, partition):
            begin = base if base is not None else begin
        if begin is None:
            # Neither read before, nor with a start of its own: no offset of ours is so.
            raise _not_ours(f"it does not tell where {topic}/{partition} begins")
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
    if not isinstance(document, Mapping):
        raise _not_ours(f"its {name!r} is no object")
    found: dict[str, dict[int, int]] = {}
    for topic, partitions in document.items():
        if not isinstance(topic, str) or not isinstance(partitions, Mapping):
            raise _not_ours(f"its {name!r} does not name topics with partitions")
        one = found[topic] = {}
        for partition, offset in partitions.items():
            number = isinstance(offset, int) and not isinstance(offset, bool)
            if not re.fullmatch("[0-9]{1,10}", str(partition)) or not number or not 0 <= offset <= MAX_OFFSET:
                raise _not_ours(f"{topic}/{partition} has no offset in {name!r}")
            one[int(partition)] = offset
    return found


def _is_id(name: object, topic_id: object) -> bool:
    return isinstance(name, str) and isinstance(topic_id, str) and _TOPIC_ID.fullmatch(topic_id) is not None


def _not_ours(why: str) -> InvalidRequest:
    return InvalidRequest(
        "invalid_request",
        f"the checkpoint holds an offset that this source cannot read: {why}. Another source wrote it, or a newer one",
    )
