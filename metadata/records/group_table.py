"""The table of groups and their committed offsets as of some index, built from the image's events."""

from __future__ import annotations

from collections.abc import Mapping

from raftlog.model import TopicPartition

from .events import GroupChanged, GroupEvent, GroupRemoved, OffsetsCommitted, OffsetsRemoved
from .groups import CommittedOffset, GroupRecord

_NOTHING: Mapping[TopicPartition, CommittedOffset] = {}


class GroupsView:
    """Every group as of some index. Only the feeder of the view calls `on_event`."""

    def __init__(self) -> None:
        self._groups: dict[str, GroupRecord] = {}
        self._offsets: dict[str, dict[TopicPartition, CommittedOffset]] = {}

    def group(self, group_id: str) -> GroupRecord | None:
        return self._groups.get(group_id)

    @property
    def has_groups(self) -> bool:
        return bool(self._groups)

    def groups(self) -> list[GroupRecord]:
        """Return all groups, sorted by id."""
        return [self._groups[group_id] for group_id in sorted(self._groups)]

    def offsets(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """Return the committed offsets of a group."""
        return self._offsets.get(group_id, _NOTHING)

    def on_event(self, event: GroupEvent) -> None:
        match event:
            case OffsetsCommitted(group_id, offsets):
                self._offsets.setdefault(group_id, {}).update(offsets)
            case GroupChanged(record):
                self._groups[record.group_id] = record
            case OffsetsRemoved(group_id, partitions):
                for partition in partitions:
                    self._offsets[group_id].pop(partition, None)
            case GroupRemoved(group_id):
                self._groups.pop(group_id, None)
                self._offsets.pop(group_id, None)
