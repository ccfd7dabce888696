"""Data loss: records that a query should read and cannot, with the reason. Pure.

Kafka's connector has one switch and one message for all losses. Here each loss names the range and its kind:

* `RETENTION`: retention or delete-records overtook the query;
* `RECREATED`: the topic was deleted and created again: offsets of the old one are meaningless in it;
* `DELETED`: the topic does not exist any more;
* `BEYOND_END`: the log ends below the offset that was read or requested (an unclean election, or offsets of another
  cluster).

With `failOnDataLoss` (the default) a loss ends the query: `DataLoss`. Without it the query continues with the existing
records: after the gap, at the beginning of the new topic, without the topic, at the end.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from raftlog.errors import InvalidRequest

from .log_bounds import Picture
from .offsets import PartitionRange, SourceOffset

_SHOWN = 10


class LossKind(enum.Enum):
    """Why records cannot be read."""

    RETENTION = "retention overtook the query"
    RECREATED = "the topic was deleted and created again"
    DELETED = "the topic was deleted"
    BEYOND_END = "the offset lies beyond the log's end"


@dataclass(frozen=True, slots=True)
class Loss:
    """The missing records of one partition. `end` None: an unknown number."""

    kind: LossKind
    topic: str
    partition: int
    start: int
    end: int | None
    detail: str

    def __str__(self) -> str:
        end = "..." if self.end is None else str(self.end)
        return f"{self.topic}/{self.partition} [{self.start}, {end}): {self.kind.value}: {self.detail}"


class DataLoss(InvalidRequest):
    """Records are missing, and `failOnDataLoss` is true."""

    def __init__(self, losses: Sequence[Loss]) -> None:
        self.losses = tuple(losses)
        told = "; ".join(map(str, self.losses[:_SHOWN]))
        if len(self.losses) > _SHOWN:
            told += f"; and {len(self.losses) - _SHOWN} more"
        super().__init__(
            "offset_out_of_range",
            f"records are lost: {told}. With the option failOnDataLoss=false, a query continues with what remains",
        )

    def __reduce__(self) -> tuple[type[DataLoss], tuple[tuple[Loss, ...]]]:
        return DataLoss, (self.losses,)


def retention(topic: str, partition: int, start: int, end: int, log_start: int) -> Loss:
    """Return the loss if offsets `[start, end)` were to be read and the log begins at `log_start`, above `start`."""
    detail = f"the log begins at offset {log_start} now"
    return Loss(LossKind.RETENTION, topic, partition, start, min(end, log_start), detail)


def beyond_end(topic: str, partition: int, end: int, log_end: int) -> Loss:
    """Return the loss if the log ends at `log_end` and `end`, above it, was read or requested."""
    detail = f"the log ends at offset {log_end}, below {end}"
    return Loss(LossKind.BEYOND_END, topic, partition, log_end, end, detail)


def recreated(topic: str, partition: int, start: int, end: int | None, read_id: str, now_id: str) -> Loss:
    """Return the loss if the topic's id was `read_id` and is `now_id`."""
    return Loss(LossKind.RECREATED, topic, partition, start, end, f"its id was {read_id} and is {now_id} now")


def deleted(topic: str, partition: int, start: int, end: int | None) -> Loss:
    """Return the loss of a topic that does not exist any more."""
    return Loss(LossKind.DELETED, topic, partition, start, end, "the cluster has no such topic")


def since(start: SourceOffset, picture: Picture) -> list[Loss]:
    """Return the losses of a query that has read up to `start`."""
    found = []
    for topic, topic_id, partition, offset in start.positions():
        now = picture.get(topic)
        if now is None:
            found.append(deleted(topic, partition, offset, None))
        elif now.topic_id != topic_id:
            found.append(recreated(topic, partition, offset, None, topic_id, now.topic_id))
        elif partition in now.partitions:
            bounds = now.partitions[partition]
            if offset < bounds.start:
                found.append(retention(topic, partition, offset, bounds.start, bounds.start))
            elif offset > bounds.end:
                found.append(beyond_end(topic, partition, offset, bounds.end))
    return found


def readable(ranges: Iterable[PartitionRange], picture: Picture) -> tuple[list[PartitionRange], list[Loss]]:
    """Return the readable parts of these ranges, and the losses."""
    found: list[PartitionRange] = []
    lost: list[Loss] = []
    for one in ranges:
        topic = picture.get(one.topic)
        if topic is None:
            lost.append(deleted(one.topic, one.partition, one.start, one.end))
            continue
        if topic.topic_id != one.topic_id:
            lost.append(recreated(one.topic, one.partition, one.start, one.end, one.topic_id, topic.topic_id))
            continue
        if one.partition not in topic.partitions:
            lost.append(deleted(one.topic, one.partition, one.start, one.end))
            continue
        log_start, log_end = topic.partitions[one.partition]
        if one.start < log_start:
            lost.append(retention(one.topic, one.partition, one.start, one.end, log_start))
        if one.end > log_end:
            lost.append(beyond_end(one.topic, one.partition, one.end, max(log_end, one.start)))
        left = one._replace(start=max(one.start, log_start), end=min(one.end, log_end))
        if left.size:
            found.append(left)
    return found, lost
