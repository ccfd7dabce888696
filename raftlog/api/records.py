"""Records: what was appended, pages of records, offsets of a partition, producer ids."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from .base import Request
from .problems import PartitionError


class ProducedBatch(msgspec.Struct, frozen=True, omit_defaults=True):
    """One batch of a produce request, with its outcome."""

    partition: int
    record_count: int
    base_offset: int | None = None
    log_append_time: int | None = None
    error: PartitionError | None = None


class RecordPosition(msgspec.Struct, frozen=True, gc=False):
    partition: int
    offset: int


class ProducedRecords(msgspec.Struct, frozen=True):
    topic: str
    record_count: int
    batches: list[ProducedBatch]
    offsets: msgspec.Raw | UnsetType = UNSET
    """The position of every record (`RecordPosition`), in the order of the request."""


class ReadRecords(msgspec.Struct, frozen=True):
    """A page of records of one partition."""

    topic: str
    partition: int
    records: msgspec.Raw
    next_offset: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    leader_epoch: int


class OffsetRange(msgspec.Struct, frozen=True):
    """The readable offsets of a partition: `[earliest, latest)`."""

    earliest: int
    latest: int
    leader_epoch: int = -1


class PartitionOffsets(msgspec.Struct, frozen=True):
    """The readable offsets of one partition; null if it has no leader now."""

    partition: int
    earliest: int | None
    latest: int | None


class TopicOffsets(msgspec.Struct, frozen=True):
    """The readable offsets of a topic's partitions."""

    topic: str
    topic_id: str
    partitions: list[PartitionOffsets]
    more: bool = False
    """Whether the topic has more partitions than are listed."""


class OffsetOfTime(msgspec.Struct, frozen=True):
    """The first record at or after a time; null if there is none."""

    offset: int | None
    timestamp: int | None
    leader_epoch: int


class AllocateProducer(Request, frozen=True):
    """The body `{}`."""


class Producer(msgspec.Struct, frozen=True):
    """A producer id that was not in use."""

    producer_id: int
    producer_epoch: int
