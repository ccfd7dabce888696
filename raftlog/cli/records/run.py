"""Consumed records as columns: whole batches, or runs of records of one partition that a group's member was given."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from raftlog.client.consuming.records import ConsumerRecord
from raftlog.records.batch import Header


class RecordColumns(Protocol):
    """Records of one partition, in order; a `ConsumedBatch` is one."""

    topic: str
    partition: int

    def offsets(self) -> Sequence[int]: ...
    def timestamps_ms(self) -> Sequence[int]: ...
    def keys(self) -> Sequence[bytes | None]: ...
    def values(self) -> Sequence[bytes | None]: ...
    def headers(self) -> Sequence[tuple[Header, ...]]: ...
    def __len__(self) -> int: ...


class RecordRun:
    """Records of one partition, one after the other."""

    def __init__(self, records: Sequence[ConsumerRecord]) -> None:
        """There is at least one record."""
        self.topic = records[0].topic
        self.partition = records[0].partition
        self._records = records

    def offsets(self) -> Sequence[int]:
        return [one.offset for one in self._records]

    def timestamps_ms(self) -> Sequence[int]:
        return [one.timestamp_ms for one in self._records]

    def keys(self) -> Sequence[bytes | None]:
        return [one.key for one in self._records]

    def values(self) -> Sequence[bytes | None]:
        return [one.value for one in self._records]

    def headers(self) -> Sequence[tuple[Header, ...]]:
        return [one.headers for one in self._records]

    def __len__(self) -> int:
        return len(self._records)


def runs(records: Iterable[ConsumerRecord]) -> Iterator[RecordRun]:
    """Yield the records in their order, divided where the partition changes."""
    for _, some in itertools.groupby(records, lambda one: (one.topic, one.partition)):
        yield RecordRun(list(some))
