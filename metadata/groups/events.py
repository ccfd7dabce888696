"""What changed in groups, for whoever keeps a copy. As in `image_events.py`, records come whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from raftlog.model import TopicPartition

from .records import CommittedOffset, GroupRecord


@dataclass(frozen=True, slots=True)
class GroupChanged:
    """A group is new, or its members, targets or owners are others."""

    record: GroupRecord


@dataclass(frozen=True, slots=True)
class GroupRemoved:
    """A group is no more, and nor are its offsets."""

    group_id: str


@dataclass(frozen=True, slots=True)
class OffsetsCommitted:
    """Of one group; those not named here stay."""

    group_id: str
    offsets: Mapping[TopicPartition, CommittedOffset]


@dataclass(frozen=True, slots=True)
class OffsetsRemoved:
    """They expired, or their topic is no more."""

    group_id: str
    partitions: Sequence[TopicPartition]


GroupEvent: TypeAlias = GroupChanged | GroupRemoved | OffsetsCommitted | OffsetsRemoved
