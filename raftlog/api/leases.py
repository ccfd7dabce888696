"""Leases of ranges of records of consumer groups without members."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from .base import Natural, OfTopicPartition, Request, TopicName

MAX_LEASED_TOPICS = 64
MAX_LEASED_RECORDS = 10_000
DEFAULT_LEASED_RECORDS = 100
LEAST_LEASE_MS = 1_000
MAX_LEASE_MS = 43_200_000
DEFAULT_LEASE_MS = 30_000
MAX_LEASE_WAIT_MS = 60_000

LeaseTime = Annotated[int, Meta(ge=LEAST_LEASE_MS, le=MAX_LEASE_MS)]
"""Milliseconds."""
Format = Literal["auto", "text", "json", "base64"]


class TakeLease(Request, frozen=True):
    """A request for records without a lease, or whose lease is over."""

    topics: Annotated[list[TopicName], Meta(min_length=1, max_length=MAX_LEASED_TOPICS)]
    max_records: Annotated[int, Meta(ge=1, le=MAX_LEASED_RECORDS)] = DEFAULT_LEASED_RECORDS
    lease_ms: LeaseTime = DEFAULT_LEASE_MS
    """The time after which what is not acknowledged goes to somebody else."""
    max_wait_ms: Annotated[int, Meta(ge=0, le=MAX_LEASE_WAIT_MS)] = 0
    start: Literal["earliest", "latest"] = "earliest"
    """The beginning of a partition in which the group has committed nothing."""
    key_format: Format = "auto"
    value_format: Format = "auto"


class LeaseInfo(OfTopicPartition, frozen=True):
    """A lease."""

    id: str
    start_offset: int
    end_offset: int
    """The offset behind the last record."""
    lease_ms: int
    deliveries: int
    """How many workers have had these records, this one included: 1 at the first delivery."""


class TakenLease(LeaseInfo, frozen=True):
    records: msgspec.Raw = msgspec.Raw(b"[]")


class LeaseAnswer(msgspec.Struct, frozen=True):
    lease: TakenLease | None
    """None: there was nothing to read."""


class AcknowledgeLease(Request, frozen=True):
    offset: Natural | None = None
    """The offset behind the last record that is done; None: all of the lease."""


class AcknowledgedLease(msgspec.Struct, frozen=True):
    committed_offset: int
    """The group's committed offset in the partition: the lowest that is not acknowledged."""


class RenewLease(Request, frozen=True):
    lease_ms: LeaseTime = DEFAULT_LEASE_MS


class OutstandingLease(LeaseInfo, frozen=True):
    left_ms: int
    """The time until it is over, as the node knows it; 0: it is."""


class OutstandingLeases(msgspec.Struct, frozen=True):
    leases: list[OutstandingLease]
