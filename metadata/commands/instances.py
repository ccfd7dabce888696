"""Commands about HTTP consumer instances. They are changes of groups, and share their commands and their order.

An instance has one owner at a time, whatever any node believes: a claim names the epoch that it replaces, and is
refused if that is no longer the instance's. `INSTANCES_FEATURE_LEVEL` is the level from which they may be proposed.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from .fields import BrokerIdField, IncarnationField, NaturalField, PrincipalField, TextField, WireStruct
from .groups import MAX_CHANGES, MAX_TOPICS_PER_MEMBER, GroupChange, GroupIdField, MemberIdField, Partitions
from .leases import LeaseChange

INSTANCES_FEATURE_LEVEL = 7

MAX_INSTANCES = 10_000
MAX_WAIT_MS = 300_000


class OfInstance(WireStruct, frozen=True):
    """The base of what is about one instance."""

    group_id: GroupIdField
    name: MemberIdField


class PutInstance(OfInstance, frozen=True, tag="put_instance"):
    """Creates an instance, or takes the place of one of that name, which is `expected` (-1: there must be none).

    What was subscribed before is gone, as if the former instance had been deleted.
    """

    embedded: Literal["binary", "json", "text"]
    offset_reset: Literal["earliest", "latest"]
    auto_commit: bool
    min_bytes: NaturalField
    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=MAX_WAIT_MS)]
    expected: Annotated[int, msgspec.Meta(ge=-1, le=2**62)]
    owner: BrokerIdField
    owner_incarnation: IncarnationField
    now_ms: NaturalField


class ClaimInstance(OfInstance, frozen=True, tag="claim_instance"):
    """Makes a broker the owner of an instance that is at `epoch`. Its member of the group begins a new incarnation."""

    epoch: NaturalField
    owner: BrokerIdField
    owner_incarnation: IncarnationField


class SubscribeInstance(OfInstance, frozen=True, tag="subscribe_instance"):
    """Replaces the subscription of an instance that is at `epoch`: topics and a pattern, or partitions, or nothing."""

    epoch: NaturalField
    topics: Annotated[tuple[TextField, ...], msgspec.Meta(max_length=MAX_TOPICS_PER_MEMBER)]
    pattern: TextField
    partitions: Partitions
    now_ms: NaturalField


class RemoveInstance(OfInstance, frozen=True, tag="remove_instance"):
    """Removes an instance that is at `epoch`, and its member of the group."""

    epoch: NaturalField
    now_ms: NaturalField


InstanceChange: TypeAlias = PutInstance | ClaimInstance | SubscribeInstance | RemoveInstance
AnyGroupChange: TypeAlias = GroupChange | InstanceChange | LeaseChange


class ChangeGroupsAndInstances(WireStruct, frozen=True, tag="change_groups.3"):
    """Changes of groups, instances and leases, in order, each with its principal. Answered by `GroupsChanged`. Needs
    `INSTANCES_FEATURE_LEVEL`."""

    changes: Annotated[tuple[AnyGroupChange, ...], msgspec.Meta(max_length=MAX_CHANGES)]
    principals: Annotated[tuple[PrincipalField, ...], msgspec.Meta(max_length=MAX_CHANGES)]
