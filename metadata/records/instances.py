"""HTTP consumer instances, as the quorum agreed on them.

An instance is a consumer of the REST Proxy API: a name in a group, with the settings that it was created with and its
subscription. One node *owns* it: keeps its positions in memory, and is a member of the group for it. The **epoch** is
the entry that last made somebody the owner, or changed the subscription; it is also the incarnation of the group's
member. So everything that a former owner still does is fenced as that of a former incarnation is (S8).

A record is never modified, only replaced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from raftlog.model import BrokerId, Incarnation, TopicPartition


class InstanceSettings(msgspec.Struct, frozen=True, array_like=True):
    """The settings of an instance, from its creation."""

    embedded: str
    """The format of keys and values: `binary`, `json` or `text`."""
    offset_reset: str
    """The first offset where the group has committed none: `earliest` or `latest`."""
    auto_commit: bool
    min_bytes: int
    """A read waits for this number of bytes, within its time."""
    wait_ms: int
    """The longest wait of a read that does not say otherwise, in milliseconds."""


class InstanceRecord(msgspec.Struct, frozen=True):
    """One instance.

    Invariant: it has topics or a pattern (then it is a member of its group), or partitions, or none of them.
    """

    group_id: str
    name: str
    settings: InstanceSettings
    principal: str
    """The principal that created it; empty: none."""
    owner: BrokerId
    owner_incarnation: Incarnation
    epoch: int
    topics: tuple[str, ...] = ()
    pattern: str = ""
    partitions: tuple[TopicPartition, ...] = ()
    """The partitions that it has assigned to itself, sorted."""

    @property
    def subscribes(self) -> bool:
        """Return whether it is a member of its group."""
        return bool(self.topics or self.pattern)


class InstanceChanged(msgspec.Struct, frozen=True):
    """An instance was created, has another owner or another subscription."""

    record: InstanceRecord


class InstanceRemoved(msgspec.Struct, frozen=True):
    """An instance was deleted or has expired."""

    group_id: str
    name: str


InstanceEvent = InstanceChanged | InstanceRemoved


class Instances:
    """Every instance as of some index. Only the feeder calls `on_event`."""

    def __init__(self) -> None:
        self._by_group: dict[str, dict[str, InstanceRecord]] = {}
        self.count = 0
        """The number of all instances."""

    def instance(self, group_id: str, name: str) -> InstanceRecord | None:
        return self._by_group.get(group_id, {}).get(name)

    def of_group(self, group_id: str) -> Mapping[str, InstanceRecord]:
        """Return the instances of a group by name."""
        return self._by_group.get(group_id, {})

    def records(self) -> Iterator[InstanceRecord]:
        """Yield all instances, by group and name."""
        for group_id in sorted(self._by_group):
            yield from (record for _, record in sorted(self._by_group[group_id].items()))

    def on_event(self, event: InstanceEvent) -> None:
        match event:
            case InstanceChanged(record):
                known = self._by_group.setdefault(record.group_id, {})
                self.count += record.name not in known
                known[record.name] = record
            case InstanceRemoved(group_id, name):
                known = self._by_group.get(group_id, {})
                if known.pop(name, None) is not None:
                    self.count -= 1
                    if not known:
                        del self._by_group[group_id]
