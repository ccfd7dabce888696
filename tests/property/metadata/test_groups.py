"""Whatever members, coordinators and operators do, in any order: S8, one owner at a time, and exact snapshots."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.commands.cluster import CreateTopic, DeleteTopic
from metadata.commands.groups import (
    ChangeGroups,
    Commit,
    Delete,
    DeleteOffsets,
    Expire,
    Fence,
    GroupChange,
    Leave,
    OffsetToCommit,
    Release,
    Reset,
    pack_partitions,
    unpack_partitions,
)
from metadata.commands.results import GroupsChanged
from metadata.image.image import ClusterImage
from metadata.image.invariants import check
from metadata.records.groups import MemberRecord
from metadata.snapshot.encoder import encode_snapshot
from metadata.view import ClusterView
from raftlog.model import BrokerId, Offset, TopicPartition
from tests.support.metadata.at_once import decode_snapshot, diff
from tests.support.metadata.cluster import TOPIC
from tests.support.metadata.groups import NOW_MS, GroupCluster, join, tps

PARTITIONS = 4


class Mess:
    """Members whose knowledge is out of date, and who act on it in any order."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.cluster = GroupCluster(PARTITIONS)
        self.memories: list[MemberRecord] = []
        """All former states of members, which may act at any later time."""

    def change(self) -> GroupChange | None:
        group = self.cluster.image.groups.by_id.get("readers")
        member = self.random.choice(self.memories) if self.memories else None
        if group is not None and group.members and self.random.random() < 0.7:
            member = group.members[self.random.choice(sorted(group.members))]
        kind = self.random.choice(["join", "rebalance", "rebalance", "release", "release", "commit", "commit", "go"])
        if kind == "join" or member is None or group is None:
            name = self.random.choice("abc")
            instance = name if name == "c" else ""
            return join(name + (self.random.choice("12") if instance else ""), instance=instance)
        if kind == "rebalance":
            if group.members:
                self.cluster.rebalance()
            return None
        spoken = (member.member_id, member.incarnation, member.generation)
        if kind == "release":
            given_up = member.revoking or tps(self.random.randrange(PARTITIONS))
            return Release("readers", *spoken, pack_partitions(given_up))
        if kind == "commit":
            mine = sorted(member.owned) or tps(self.random.randrange(PARTITIONS))
            chosen = self.random.choice(mine).partition
            to_commit = OffsetToCommit(TOPIC, chosen, Offset(self.random.randrange(50)))
            return Commit("readers", *spoken, NOW_MS, (to_commit,))
        return self.random.choice(
            [
                Leave("readers", member.member_id, member.incarnation, NOW_MS),
                Fence("readers", member.member_id, member.incarnation, self.cluster.term, NOW_MS),
                Reset("readers", group.epoch, NOW_MS, (OffsetToCommit(TOPIC, 0, Offset(1)),)),
                Expire("readers", group.epoch, self.cluster.term, NOW_MS + self.random.choice((0, 1))),
                Delete("readers"),
                DeleteOffsets("readers", pack_partitions(tps(self.random.randrange(PARTITIONS)))),
            ]
        )

    def renew_topic(self) -> None:
        """The groups' knowledge of the topic is gone; the next topic of its name begins without it."""
        self.cluster.do(DeleteTopic(TOPIC))
        assert dict(self.cluster.image.groups.offsets_of("readers")) == {}
        self.cluster.do(CreateTopic("orders", TOPIC, ((BrokerId(0),),) * PARTITIONS, ()))

    def step(self) -> None:
        if self.random.random() < 0.03:
            self.renew_topic()
        change = self.change()
        image = self.cluster.image
        before = dict(image.groups.offsets_of("readers"))
        group = image.groups.by_id.get("readers")
        if change is not None:
            result = self.cluster.apply(ChangeGroups((change,)))
            assert isinstance(result, GroupsChanged)
            self.judge(change, bool(result.refusals), before, dict(group.members) if group is not None else {})
        group = image.groups.by_id.get("readers")
        for member in group.members.values() if group is not None else ():
            self.memories.append(member)

    def judge(
        self,
        change: GroupChange,
        refused: bool,
        before: dict[TopicPartition, object],
        members: dict[str, MemberRecord],
    ) -> None:
        after = self.cluster.image.groups.offsets_of("readers")
        if refused or not isinstance(change, Reset | Expire | Delete | DeleteOffsets):
            for partition, committed in before.items():
                assert after[partition].offset >= committed.offset, change  # type: ignore[attr-defined]
        if isinstance(change, DeleteOffsets) and not refused:
            named = set(unpack_partitions(change.partitions))
            assert not any(named & {*member.owned, *member.target} for member in members.values())
            assert dict(after) == {partition: one for partition, one in before.items() if partition not in named}
        if isinstance(change, Commit) and not refused:
            member = members[change.member_id]
            assert member.incarnation == change.incarnation
            for one in change.offsets:
                assert member.owned[TopicPartition(one.topic_id, one.partition)] <= change.generation
        if not isinstance(change, Commit | Reset | Expire | Delete | DeleteOffsets):
            assert dict(after) == before


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60))
def test_no_offset_is_lost_or_moved_back_and_only_its_owner_commits_s8(seed: int, length: int) -> None:
    mess = Mess(seed)
    for _ in range(length):
        mess.step()  # every invariant is checked after every command, including the single owner
    image = mess.cluster.image
    restored = decode_snapshot(encode_snapshot(image))
    assert encode_snapshot(restored) == encode_snapshot(image)
    check(restored)
    assert diff(image, restored) == []
    fresh = ClusterView()
    fresh.on_events(image.index, diff(ClusterImage(), restored))
    followed = mess.cluster.view
    assert fresh.groups.groups() == followed.groups.groups()
    assert dict(fresh.groups.offsets("readers")) == dict(followed.groups.offsets("readers"))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_once_members_follow_their_assignments_each_owns_its_target_s10(seed: int) -> None:
    mess = Mess(seed)
    for _ in range(40):
        mess.step()
    cluster = mess.cluster
    cluster.change(join("a"))
    for _ in range(3):
        cluster.rebalance()  # a coordinator also does so for topics that were created or deleted
        for name in sorted(cluster.group().members):
            revoking = [tp.partition for tp in cluster.member(name).revoking]
            if revoking:
                cluster.release(name, *revoking)
    assert cluster.group().state.value == "Stable"
    assert sorted(n for name in cluster.group().members for n in cluster.owned(name)) == list(range(PARTITIONS))
