"""Groups and their offsets as the image holds them.

Only the methods that write here change anything, and each notes an event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from metadata.records.events import GroupChanged, GroupEvent, GroupRemoved, OffsetsCommitted, OffsetsRemoved
from metadata.records.groups import CommittedOffset, GroupRecord
from metadata.records.owner_table import Owners
from metadata.records.owners import NO_OWNER, Owned
from raftlog.model import TopicId, TopicPartition

_NOTHING: Mapping[TopicPartition, CommittedOffset] = {}


@dataclass(frozen=True, slots=True)
class IndexFacts:
    """The index from topics to the groups that may read them, in both directions."""

    groups_of: Mapping[TopicId, tuple[str, ...]]
    topics_of: Mapping[str, tuple[TopicId, ...]]


class GroupsState:
    """The image's groups and their committed offsets."""

    def __init__(self, note: Callable[[GroupEvent], None], owners: Owners) -> None:
        """`owners` follows the noted events."""
        self._note = note
        self._owners = owners
        self.by_id: dict[str, GroupRecord] = {}
        self.offset_count = 0
        """The number of committed offsets of all groups."""
        self._offset_counts: Counter[str] = Counter()
        """Owner → the number of committed offsets of its groups; derived."""
        self._offsets: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._lent: set[str] = set()
        """Groups whose offsets are shared with a snapshot: they must be copied before a change."""
        self._of_topics: dict[TopicId, dict[str, None]] = {}
        """Topic → groups that may read it or have committed in it; derived. Surplus entries go with the topic or the
        group.
        """
        self._topics_of: dict[str, dict[TopicId, None]] = {}
        """Group → topics, the inverse, so that short-lived groups leave nothing behind."""

    def index_facts(self) -> IndexFacts:
        """Return the index, for tests."""
        return IndexFacts(
            {topic_id: tuple(groups) for topic_id, groups in self._of_topics.items()},
            {group_id: tuple(topics) for group_id, topics in self._topics_of.items()},
        )

    def offset_count_of(self, owner: str) -> int:
        """Return the number of committed offsets of an owner's groups."""
        return self._offset_counts[owner]

    def offsets_of(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        return self._offsets.get(group_id, _NOTHING)

    def of_topic(self, topic_id: TopicId) -> list[GroupRecord]:
        """Return every group that this topic's deletion concerns, and perhaps others, sorted by id: a node that began
        from a snapshot holds them in another order.
        """
        return [self.by_id[name] for name in sorted(self._of_topics.get(topic_id, ())) if name in self.by_id]

    def forget_topic(self, topic_id: TopicId) -> None:
        """Drop the topic from the index: no group reads it or has committed in it any more."""
        for group_id in self._of_topics.pop(topic_id, ()):
            self._topics_of[group_id].pop(topic_id)

    def put_group(self, record: GroupRecord, topics: Iterable[TopicId] = ()) -> None:
        """Store a group. `topics`: those in its targets, if they are new."""
        self.by_id[record.group_id] = record
        self._read(record.group_id, topics)
        self._note(GroupChanged(record))

    def remove_group(self, record: GroupRecord) -> None:
        """Remove a group and its offsets."""
        del self.by_id[record.group_id]
        for topic_id in self._topics_of.pop(record.group_id, ()):
            groups = self._of_topics[topic_id]
            del groups[record.group_id]
            if not groups:
                del self._of_topics[topic_id]
        self._count_offsets(record.group_id, -len(self._offsets.pop(record.group_id, ())))
        self._lent.discard(record.group_id)
        self._note(GroupRemoved(record.group_id))

    def put_offsets(self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Store these offsets, regardless of earlier ones."""
        if offsets:
            known = self._own_offsets(group_id)
            before = len(known)
            known.update(offsets)
            self._count_offsets(group_id, len(known) - before)
            self._read(group_id, {partition.topic_id: None for partition in offsets})
            self._note(OffsetsCommitted(group_id, offsets))

    def remove_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Remove these offsets, which must exist."""
        gone = tuple(partitions)
        known = self._own_offsets(group_id)
        for partition in gone:
            del known[partition]
        self._count_offsets(group_id, -len(gone))
        self._note(OffsetsRemoved(group_id, gone))

    def _count_offsets(self, group_id: str, change: int) -> None:
        self.offset_count += change
        owner = self._owners.owner(Owned.GROUP, group_id) if change else NO_OWNER
        if owner != NO_OWNER:
            self._offset_counts[owner] += change
            if not self._offset_counts[owner]:
                del self._offset_counts[owner]

    def _read(self, group_id: str, topics: Iterable[TopicId]) -> None:
        for topic_id in topics:
            self._of_topics.setdefault(topic_id, {})[group_id] = None
            self._topics_of.setdefault(group_id, {})[topic_id] = None

    def copy_offsets(self) -> Mapping[str, Mapping[TopicPartition, CommittedOffset]]:
        """Return a copy for a concurrent snapshot. A group's offsets are copied on its next change: there may be a
        million.
        """
        self._lent = set(self._offsets)
        return {group_id: offsets for group_id, offsets in self._offsets.items() if offsets}

    def _own_offsets(self, group_id: str) -> dict[TopicPartition, CommittedOffset]:
        """Return a group's offsets for modification."""
        if group_id in self._lent:
            self._lent.discard(group_id)
            self._offsets[group_id] = self._offsets[group_id].copy()
        return self._offsets.setdefault(group_id, {})
