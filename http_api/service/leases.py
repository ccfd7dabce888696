"""The broker's port for leases of ranges of records. `raftlog/broker/changes/leases.py` implements it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

import msgspec

from metadata.view import LeasedPartition, LeasedRange
from raftlog.errors import InvalidRequest
from raftlog.model import TopicId, TopicPartition

_NAME = re.compile(r"([0-9a-f]{32})-([0-9]{1,10})-([0-9a-f]{16})", re.ASCII)


class LeaseName(msgspec.Struct, frozen=True):
    """The name of a lease, by which its holder acknowledges."""

    partition: TopicPartition
    lease_id: int

    def __str__(self) -> str:
        return f"{self.partition.topic_id.hex()}-{self.partition.partition}-{self.lease_id:016x}"

    @classmethod
    def parse(cls, text: str) -> LeaseName:
        """Return the name with this text. Raises `InvalidRequest`."""
        match = _NAME.fullmatch(text)
        if match is None or int(match[2]) >= 2**31 or int(match[3], 16) > 2**62:
            raise InvalidRequest("invalid_request", f"{text[:64]!r} is not the name of a lease")
        return cls(TopicPartition(TopicId(bytes.fromhex(match[1])), int(match[2])), int(match[3], 16))


class Claim(msgspec.Struct, frozen=True):
    """A range that somebody may take now."""

    group_id: str
    partition: TopicPartition
    start: int | None
    """The first offset; None: the group has committed nothing, and begins wherever its first lease does."""
    end: int | None = None
    """The offset behind the range; None: no lease has had the records from `start` on."""
    replaces: int = -1
    """The lease that is over; -1: none."""
    deliveries: int = 1
    """How many workers will have had the records, the taker included."""


class HeldLease(msgspec.Struct, frozen=True):
    """A lease for a list."""

    record: LeasedPartition
    held: LeasedRange
    left_ms: int
    """The time until it is over, as this node knows it, in milliseconds."""


class LeaseService(Protocol):
    """Leases: any node gives and takes any. Calls raise `InvalidRequest` (`lease_lost`, `group_not_empty`,
    `unsupported_version`), or a `RetriableError`: `lease_moved` if a claim is out of date."""

    def claims(self, group_id: str, partitions: Sequence[TopicPartition]) -> list[Claim]:
        """Return what may be taken of these partitions, as far as the view shows: in each the ranges whose leases are
        over, or else the range that no lease has had. Raises `InvalidRequest` (`group_not_empty`)."""
        ...

    async def begin(self, group_id: str, partition: TopicPartition, offset: int, principal: str) -> None:
        """Let a group begin at this offset, unless it has begun."""
        ...

    async def take(self, claim: Claim, start: int, end: int, lease_ms: int, principal: str) -> LeaseName:
        """Take the first part of a claim."""
        ...

    async def acknowledge(self, group_id: str, name: LeaseName, below: int | None, principal: str) -> int:
        """Acknowledge the records of a lease below an offset (None: all). Returns the group's committed offset."""
        ...

    async def renew(self, group_id: str, name: LeaseName, lease_ms: int, principal: str) -> None:
        """Give the holder of a lease this time from now on; 0 gives the range back."""
        ...

    def of_group(self, group_id: str) -> list[HeldLease]:
        """Return the leases of a group, as far as the view shows."""
        ...
