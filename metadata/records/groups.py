"""Groups, members and committed offsets, as the quorum agreed on them.

Three numbers fence a consumer, all of them indexes of log entries, so unique and rising without a counter to keep:

* a member's **incarnation** is the entry by which it joined (last): an older life of the same member is nobody;
* its **generation** is the entry that last changed what it owns or is to own;
* a partition in `owned` has the entry by which it was **granted**: what a member says of a generation before that, it
  said when the partition was perhaps somebody else's.

A record is never changed, only replaced, its mappings too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter

import msgspec

from raftlog.model import Offset, TopicPartition

NEVER_MS = -1
"""No time: of a group that has members, or of one that never had any."""


_topic_and_number = attrgetter("topic_id", "partition")


def in_order(partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Sorted, several times faster than by comparing the records themselves."""
    return sorted(partitions, key=_topic_and_number)


class GroupState(Enum):
    """Kafka's names (KIP-848)."""

    EMPTY = "Empty"
    """No members; its offsets are kept until they expire."""
    ASSIGNING = "Assigning"
    """Its target is older than its membership: the coordinator is about to make another."""
    RECONCILING = "Reconciling"
    """Some member does not own its target yet: another has something to give up."""
    STABLE = "Stable"


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """One consumer of a group.

    Invariant: `generation >= ` every entry of `owned`; the `owned` of a group's members are disjoint.
    """

    member_id: str
    instance_id: str
    """Of a static member (KIP-345): who joins with it takes this member's place. Empty: a dynamic member."""
    incarnation: int
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    """Names it subscribed to, sorted."""
    pattern: str
    """And every topic whose whole name fits this (RE2); empty: none."""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    """How long it may take to give a partition up before it is removed from the group."""
    generation: int
    owned: Mapping[TopicPartition, int] = field(default_factory=dict)
    """What is its own now → when it was granted. It alone may commit for these."""
    target: frozenset[TopicPartition] = frozenset()
    """What it is to own. Order never matters: whoever writes it down sorts."""

    @property
    def assigned(self) -> list[TopicPartition]:
        """What it may read: its own, and to stay so. Sorted."""
        return in_order(partition for partition in self.owned if partition in self.target)

    @property
    def revoking(self) -> list[TopicPartition]:
        """What it must give up. Sorted."""
        return in_order(partition for partition in self.owned if partition not in self.target)

    @property
    def is_reconciled(self) -> bool:
        return len(self.owned) == len(self.target) and all(partition in self.target for partition in self.owned)


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A group, without its offsets.

    Invariant: `target_epoch <= epoch`.
    """

    group_id: str
    epoch: int
    """The entry that last changed who is in it or what they subscribed to."""
    target_epoch: int
    """The epoch for which the targets were made; other than `epoch` (0: none were): others are about to be."""
    assignor: str
    """How targets are made (`metadata/rules/assignors.py`): what the member that joined last asked for."""
    empty_since_ms: int = NEVER_MS
    """When the last member went, by the cluster's time."""
    members: Mapping[str, MemberRecord] = field(default_factory=dict)
    _found: list[GroupState] = field(default_factory=list, init=False, repr=False, compare=False)
    """The state, once somebody has asked: every heartbeat does, and a group may have many partitions."""

    @property
    def state(self) -> GroupState:
        if not self._found:
            self._found.append(self._state())
        return self._found[0]

    def _state(self) -> GroupState:
        if not self.members:
            return GroupState.EMPTY
        if self.target_epoch != self.epoch:
            return GroupState.ASSIGNING
        if all(member.is_reconciled for member in self.members.values()):
            return GroupState.STABLE
        return GroupState.RECONCILING

    def member_of_instance(self, instance_id: str) -> MemberRecord | None:
        """The static member of this name."""
        if not instance_id:
            return None
        return next((member for member in self.members.values() if member.instance_id == instance_id), None)


class CommittedOffset(msgspec.Struct, frozen=True, gc=False):
    """Where a group goes on in one partition. A struct, because there are many and they change often."""

    offset: Offset
    leader_epoch: int
    """Of the last record consumed, where the consumer said so, otherwise -1."""
    metadata: str
    commit_timestamp_ms: int
    """By the clock of the node that took the commit."""
