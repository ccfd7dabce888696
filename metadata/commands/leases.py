"""Commands about leases of ranges of records. They are changes of groups, and share their commands and their order.

A lease is fenced by its id, which its taker chooses at random: a taker of the range names the id that it
replaces, and is refused if that is no longer the range's.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from .fields import NaturalField, OfPartition
from .groups import GroupIdField

MAX_LEASED_PARTITIONS = 10_000
"""The most pairs of a group and a partition with leases."""
MAX_RANGES = 64
"""The most leases of one group in one partition."""
MAX_LEASE_MS = 43_200_000
"""Twelve hours."""

LeaseIdField: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
LeaseIdOrNoneField: TypeAlias = Annotated[int, msgspec.Meta(ge=-1, le=2**62)]
LeaseMsField: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_LEASE_MS)]


class TakeLease(OfPartition, frozen=True, tag="take_lease"):
    """Takes the range `[start, end)`: the next one that no lease has had, or the first part of one whose lease is over.

    If the group has committed nothing here, it begins at `start`.
    """

    group_id: GroupIdField
    lease_id: LeaseIdField
    replaces: LeaseIdOrNoneField
    """The id of the lease that is over; -1: none has had the range."""
    start: NaturalField
    end: NaturalField
    lease_ms: LeaseMsField
    now_ms: NaturalField


class BeginLeases(OfPartition, frozen=True, tag="begin_leases"):
    """Commits an offset, unless something is committed: a group that begins at the end of a partition begins at the end
    of that moment, whenever its first lease is taken."""

    group_id: GroupIdField
    offset: NaturalField
    now_ms: NaturalField


class AcknowledgeLease(OfPartition, frozen=True, tag="acknowledge_lease"):
    """Acknowledges the records of a lease below an offset; without any left, the lease ends."""

    group_id: GroupIdField
    lease_id: LeaseIdField
    below: NaturalField
    now_ms: NaturalField


class RenewLease(OfPartition, frozen=True, tag="renew_lease"):
    """Gives the holder of a lease this time from now on; 0 gives the range back."""

    group_id: GroupIdField
    lease_id: LeaseIdField
    lease_ms: LeaseMsField


LeaseChange: TypeAlias = BeginLeases | TakeLease | AcknowledgeLease | RenewLease
