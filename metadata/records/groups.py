"""Groups, members and committed offsets, as the quorum agreed on them.

Three numbers fence a consumer. All are indexes of log entries, as a broker's incarnation is: unique and rising without
a counter to keep.

* A member's **incarnation** is the entry of its latest join; requests of an earlier incarnation of the same member are
  fenced.
* Its **generation** is the entry that last changed what it owns or is to own.
* Each partition in `owned` has the entry that **granted** it: a request of an earlier generation was made when the
  partition may have belonged to another member. A grant per partition, rather than an epoch per group, refuses a stale
  commit for that partition only. Kafka refuses every commit of an older epoch, also for partitions that never moved;
  accepting any epoch would admit a commit that was in flight during two rebalances.

A record is never modified, only replaced; so are its mappings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter

import msgspec

from raftlog.model import Offset, TopicPartition

NEVER_MS = -1
"""The absence of a time: the group has members, or never had any."""


_topic_and_number = attrgetter("topic_id", "partition")


def in_order(partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Return the partitions sorted, several times faster than by comparing the records themselves."""
    return sorted(partitions, key=_topic_and_number)


class GroupState(Enum):
    """Kafka's names (KIP-848)."""

    EMPTY = "Empty"
    """No members; its offsets are kept until they expire."""
    ASSIGNING = "Assigning"
    """The target is older than the membership: the coordinator is about to make a new one."""
    RECONCILING = "Reconciling"
    """Some member does not own its target yet, because another member has partitions to give up."""
    STABLE = "Stable"


class MemberRecord(msgspec.Struct, frozen=True):
    """One consumer of a group.

    Invariant: `generation >= ` every entry of `owned`; the `owned` of a group's members are disjoint.
    """

    member_id: str
    instance_id: str
    """The name of a static member (KIP-345): a consumer that joins with it takes this member's place. Empty: a dynamic
    member.
    """
    incarnation: int
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    """The names of the topics that the member subscribes to, sorted."""
    pattern: str
    """A pattern (RE2): the member also subscribes to every topic whose whole name matches it. Empty: none."""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    """The time that the member may take to give a partition up before it is removed from the group, in milliseconds."""
    generation: int
    owned: Mapping[TopicPartition, int] = {}
    """The partitions that the member owns → the entry that granted each. Only this member may commit for them."""
    target: frozenset[TopicPartition] = frozenset()
    """The partitions that the member is to own. Unordered: writers sort."""

    @property
    def assigned(self) -> list[TopicPartition]:
        """Return the partitions that the member owns and is to keep, sorted."""
        return in_order(partition for partition in self.owned if partition in self.target)

    @property
    def revoking(self) -> list[TopicPartition]:
        """Return the partitions that the member must give up, sorted."""
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
    """The entry that last changed the membership or the subscriptions."""
    target_epoch: int
    """The epoch for which the targets were made. If it differs from `epoch` (0: none were made), new ones are due."""
    assignor: str
    """The assignor that the most recent joiner requested (`metadata/rules/assignors.py`)."""
    empty_since_ms: int = NEVER_MS
    """The cluster's time at which the last member left, in milliseconds."""
    members: Mapping[str, MemberRecord] = field(default_factory=dict)
    _found: list[GroupState] = field(default_factory=list, init=False, repr=False, compare=False)
    """The cached state: every heartbeat reads it, and a group may have many partitions."""

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
        """Return the static member of this name."""
        if not instance_id:
            return None
        return next((member for member in self.members.values() if member.instance_id == instance_id), None)


class CommittedOffset(msgspec.Struct, frozen=True, gc=False):
    """A committed offset of one partition. A struct, because there are many and they change often."""

    offset: Offset
    leader_epoch: int
    """The leader epoch of the last record consumed, or -1 if the consumer did not give it."""
    metadata: str
    commit_timestamp_ms: int
    """By the clock of the node that took the commit."""
