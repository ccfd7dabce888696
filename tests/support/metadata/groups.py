"""A cluster with groups: short names for members' actions, and for the image's answers."""

from __future__ import annotations

from typing import Any

from metadata.commands.groups import (
    Assign,
    ChangeGroups,
    Commit,
    GroupChange,
    Join,
    OffsetToCommit,
    Release,
    Target,
    pack_partitions,
)
from metadata.commands.results import GroupsChanged
from metadata.records.groups import GroupRecord, MemberRecord
from metadata.rules.assignors import ASSIGNORS
from metadata.snapshot.encoder import encode_snapshot
from raftlog.model import Offset, TopicPartition
from raftlog.version import FEATURE_LEVEL

from .cluster import TOPIC, Cluster

NOW_MS = 1_700_000_000_000


def tps(*numbers: int) -> list[TopicPartition]:
    """Partitions of the one topic."""
    return [TopicPartition(TOPIC, number) for number in numbers]


def join(member_id: str, *, group: str = "readers", instance: str = "", **other: Any) -> Join:
    fields: dict[str, Any] = {
        "topics": ("orders",),
        "pattern": "",
        "assignor": "uniform",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 30_000,
        **other,
    }
    return Join(group, member_id, instance, "app", "10.0.0.1", **fields)


class GroupCluster(Cluster):
    """Four partitions of `orders`, and the groups that a test creates."""

    def __init__(self, partitions: int = 4) -> None:
        super().__init__(1, partitions=partitions, feature_level=FEATURE_LEVEL)

    def change(self, *changes: GroupChange, refused: str = "") -> None:
        """Apply all changes; or, with `refused`, the only one must be refused with this code, without an effect."""
        before = encode_snapshot(self.image) if refused else b""
        result = self.apply(ChangeGroups(changes))
        assert isinstance(result, GroupsChanged), result
        if not refused:
            assert result.refusals == ()
            return
        assert [one.code for one in result.refusals] == [refused], result
        assert self.events == []
        after = self.image.index
        self.image.index = after - 1
        assert encode_snapshot(self.image) == before
        self.image.index = after

    def group(self, group: str = "readers") -> GroupRecord:
        return self.image.groups.by_id[group]

    def member(self, member_id: str, group: str = "readers") -> MemberRecord:
        return self.group(group).members[member_id]

    def owned(self, member_id: str, group: str = "readers") -> list[int]:
        return [tp.partition for tp in sorted(self.member(member_id, group).owned)]

    def assign(self, group: str = "readers", **targets: list[int]) -> None:
        """Assign exactly these partitions of the one topic."""
        packed = tuple(Target(name, pack_partitions(tps(*numbers))) for name, numbers in sorted(targets.items()))
        self.change(Assign(group, self.group(group).epoch, packed))

    def rebalance(self, group: str = "readers") -> None:
        """Return the assignment that a coordinator would make."""
        record = self.group(group)
        topics = {name: frozenset([TOPIC]) for name in record.members}
        present = {name: member.target for name, member in record.members.items()}
        targets = ASSIGNORS[record.assignor](topics, {TOPIC: self.image.topics[TOPIC].partition_count}, present)
        packed = tuple(Target(name, pack_partitions(targets[name])) for name in sorted(targets))
        self.change(Assign(group, record.epoch, packed))

    def release(self, member_id: str, *numbers: int, generation: int | None = None, refused: str = "") -> None:
        member = self.member(member_id)
        said = member.generation if generation is None else generation
        self.change(
            Release("readers", member_id, member.incarnation, said, pack_partitions(tps(*numbers))), refused=refused
        )

    def commit(
        self,
        member_id: str,
        offsets: dict[int, int],
        *,
        incarnation: int | None = None,
        generation: int | None = None,
        refused: str = "",
        group: str = "readers",
        now_ms: int = NOW_MS,
    ) -> None:
        member = self.group(group).members.get(member_id) if group in self.image.groups.by_id else None
        lives = member.incarnation if member is not None else 0
        knows = member.generation if member is not None else 0
        packed = tuple(OffsetToCommit(TOPIC, number, Offset(offset)) for number, offset in offsets.items())
        commit = Commit(
            group,
            member_id,
            lives if incarnation is None else incarnation,
            knows if generation is None else generation,
            now_ms,
            packed,
        )
        self.change(commit, refused=refused)

    def committed(self, group: str = "readers") -> dict[int, int]:
        return {tp.partition: one.offset for tp, one in sorted(self.image.groups.offsets_of(group).items())}
