"""Consumer groups in the image: the owners of partitions, and the commits that are accepted (S8)."""

from __future__ import annotations

import pytest

from metadata.commands.cluster import AddPartitions, DeleteTopic
from metadata.commands.envelope import ENVELOPE_VERSION, Envelope
from metadata.commands.groups import (
    MAX_MEMBERS_PER_GROUP,
    Assign,
    ChangeGroups,
    Delete,
    DeleteOffsets,
    Expire,
    Fence,
    Leave,
    OffsetToCommit,
    Reset,
    Target,
    TopicPartitions,
    pack_partitions,
)
from metadata.commands.results import GroupsChanged
from metadata.image.image import ClusterImage
from metadata.records.groups import GroupState
from metadata.snapshot.encoder import encode_snapshot
from metadata.view import ClusterView
from raftlog.model import BrokerId, Offset
from tests.support.metadata.at_once import apply, decode_snapshot, diff
from tests.support.metadata.cluster import TOPIC
from tests.support.metadata.groups import NOW_MS, GroupCluster, join, tps


def two_members() -> GroupCluster:
    """`a` owns 0 and 1, `b` owns 2 and 3."""
    cluster = GroupCluster()
    cluster.change(join("a"), join("b"))
    cluster.assign(a=[0, 1], b=[2, 3])
    return cluster


def test_a_group_is_created_with_its_first_member() -> None:
    cluster = GroupCluster()
    cluster.change(join("a"))
    assert cluster.group().state is GroupState.ASSIGNING
    assert cluster.member("a").incarnation == cluster.image.index
    cluster.rebalance()
    assert cluster.group().state is GroupState.STABLE
    assert cluster.owned("a") == [0, 1, 2, 3]


def test_joins_and_leaves_of_one_command_require_an_assignment() -> None:
    cluster = GroupCluster()
    cluster.change(join("a"))
    cluster.rebalance()
    first = cluster.member("a").incarnation
    cluster.change(Leave("readers", "a", first, NOW_MS), join("b"))
    assert cluster.group().state is GroupState.ASSIGNING


def test_a_partition_is_granted_only_after_its_owner_gave_it_up() -> None:
    cluster = two_members()
    cluster.change(join("c"))
    cluster.assign(a=[0], b=[2, 3], c=[1])
    assert cluster.group().state is GroupState.RECONCILING
    assert (cluster.owned("a"), cluster.owned("c")) == ([0, 1], [])
    assert cluster.member("a").revoking == tps(1)
    assert cluster.member("a").assigned == tps(0)
    cluster.release("a", 1)
    assert (cluster.owned("a"), cluster.owned("c")) == ([0], [1])
    assert cluster.group().state is GroupState.STABLE


def test_a_late_copy_of_a_release_releases_nothing() -> None:
    cluster = two_members()
    before = cluster.member("a").generation
    cluster.assign(a=[1], b=[0, 2, 3])
    cluster.release("a", 0, generation=before)
    cluster.assign(a=[0, 1], b=[2, 3])
    cluster.release("b", 0)
    assert cluster.owned("a") == [0, 1]
    cluster.release("a", 0, generation=before)
    assert cluster.owned("a") == [0, 1]


def test_a_release_may_name_anything_s11() -> None:
    """Duplicates, another member's partition or none's, a generation that never existed: every node applies it."""
    cluster = two_members()
    cluster.release("a", 0, 0, 2, 9, generation=2**62)
    assert (cluster.owned("a"), cluster.owned("b")) == ([0, 1], [2, 3])
    cluster.release("a", 9, generation=2**62)
    assert cluster.owned("a") == [0, 1]


def test_a_released_partition_that_should_stay_is_granted_again() -> None:
    cluster = two_members()
    cluster.release("a", 0)
    assert cluster.owned("a") == [0, 1]
    assert cluster.member("a").owned[tps(0)[0]] == cluster.image.index


def test_a_removed_members_partitions_have_no_owner() -> None:
    cluster = two_members()
    cluster.change(Leave("readers", "a", cluster.member("a").incarnation, NOW_MS))
    assert cluster.group().state is GroupState.ASSIGNING
    assert cluster.owned("b") == [2, 3]
    cluster.rebalance()
    assert cluster.owned("b") == [0, 1, 2, 3]


def test_a_coordinator_of_another_term_removes_no_member() -> None:
    cluster = two_members()
    incarnation = cluster.member("a").incarnation
    cluster.change(Fence("readers", "a", incarnation, cluster.term - 1, NOW_MS), refused="not_coordinator")
    cluster.change(Fence("readers", "a", incarnation - 1, cluster.term, NOW_MS), refused="member_fenced")
    cluster.change(Fence("readers", "a", incarnation, cluster.term, NOW_MS))
    cluster.change(Fence("readers", "a", incarnation, cluster.term, NOW_MS), refused="unknown_member")


def test_targets_apply_to_the_membership_for_which_they_were_computed() -> None:
    cluster = two_members()
    epoch = cluster.group().epoch
    cluster.change(join("c"))
    mine = (Target("a", pack_partitions(tps(0))), Target("b", ()))
    cluster.change(Assign("readers", epoch, mine), refused="stale_group_epoch")
    epoch = cluster.group().epoch
    cluster.change(Assign("readers", epoch, mine), refused="stale_group_epoch")
    twice = (Target("a", pack_partitions(tps(0))), Target("b", pack_partitions(tps(0))), Target("c", ()))
    cluster.change(Assign("readers", epoch, twice), refused="invalid_request")
    nowhere = (Target("a", pack_partitions(tps(9))), Target("b", ()), Target("c", ()))
    cluster.change(Assign("readers", epoch, nowhere), refused="unknown_partition")
    cluster.change(Assign("nobody", 1, ()), refused="stale_group_epoch")


# --- Static members --------------------------------------------------------------------------------------------------


def test_a_restarted_static_member_takes_its_own_place() -> None:
    cluster = GroupCluster()
    cluster.change(join("a-1", instance="a"), join("b-1", instance="b"))
    cluster.rebalance()
    owned, epoch = cluster.owned("a-1"), cluster.group().epoch
    old = cluster.member("a-1")
    cluster.change(join("a-2", instance="a"))
    assert cluster.group().epoch == epoch
    assert cluster.group().state is GroupState.STABLE
    assert sorted(cluster.group().members) == ["a-2", "b-1"]
    assert cluster.owned("a-2") == owned
    cluster.commit("a-1", {owned[0]: 5}, incarnation=old.incarnation, refused="unknown_member")
    cluster.commit("a-2", {owned[0]: 5})


def test_a_member_that_joins_again_fences_its_former_incarnation() -> None:
    cluster = two_members()
    before = cluster.member("a")
    cluster.change(join("a"))
    assert cluster.owned("a") == [0, 1]
    cluster.commit("a", {0: 5}, incarnation=before.incarnation, refused="member_fenced")
    cluster.commit("a", {0: 5}, generation=before.generation, refused="stale_generation")
    cluster.commit("a", {0: 5})


def test_no_two_processes_of_a_member_have_one_incarnation_s8() -> None:
    """Two processes of one name join at one node at the same moment: both would own and commit the same partitions."""
    cluster = GroupCluster()
    cluster.change(join("a"), join("b"))
    result = cluster.apply(ChangeGroups((join("a"), join("a"), join("b"))))
    assert isinstance(result, GroupsChanged)
    assert [(one.position, one.code) for one in result.refusals] == [(1, "stale_group_epoch")]
    first = cluster.member("a")
    cluster.change(join("a"))
    cluster.change(Leave("readers", "a", first.incarnation, NOW_MS), refused="member_fenced")


def test_invalid_joins() -> None:
    cluster = two_members()
    cluster.change(join("c", assignor="mine"), refused="invalid_request")
    cluster.change(join("c", topics=()), refused="invalid_request")
    cluster.change(join("a", instance="else"), refused="invalid_request")
    cluster.change(*[join(f"m-{number}") for number in range(MAX_MEMBERS_PER_GROUP - 2)])
    cluster.change(join("c"), refused="invalid_request")


def test_groups_are_bounded_and_a_deleted_one_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = GroupCluster()
    monkeypatch.setattr("metadata.image.groups.MAX_GROUPS", 1)
    cluster.change(join("a"))
    cluster.change(join("b", group="others"), refused="invalid_request")
    cluster.commit("", {0: 1}, group="others", refused="invalid_request")
    cluster.change(join("b"))
    assert sorted(cluster.group().members) == ["a", "b"], "a group that is there may grow"
    for name in ("a", "b"):
        cluster.change(Leave("readers", name, cluster.member(name).incarnation, NOW_MS))
    cluster.change(Delete("readers"))
    cluster.change(join("b", group="others"))
    assert sorted(cluster.image.groups.by_id) == ["others"]


# --- Commits (S8) ----------------------------------------------------------------------------------------------------


def test_an_ordinary_commit_never_lowers_an_offset_s8() -> None:
    cluster = two_members()
    cluster.commit("a", {0: 10, 1: 7})
    cluster.commit("a", {0: 4, 1: 8})
    assert cluster.committed() == {0: 10, 1: 8}


def test_only_the_owner_commits_s8() -> None:
    cluster = two_members()
    cluster.commit("a", {0: 1, 2: 1}, refused="stale_generation")
    cluster.commit("nobody", {0: 1}, refused="unknown_member")
    cluster.commit("", {0: 1}, refused="group_not_empty")
    cluster.commit("a", {0: 1}, incarnation=0, refused="member_fenced")


def test_a_commit_in_flight_over_two_rebalances_is_refused_s8() -> None:
    """A's commit is late; B has the partition and commits; A has it again; then A's commit arrives."""
    cluster = two_members()
    a, late = cluster.member("a"), cluster.member("a").generation
    cluster.assign(a=[1], b=[0, 2, 3])
    cluster.release("a", 0)
    cluster.commit("b", {0: 2})
    cluster.commit("a", {0: 9}, incarnation=a.incarnation, generation=late, refused="stale_generation")
    cluster.assign(a=[0, 1], b=[2, 3])
    cluster.release("b", 0)
    cluster.commit("a", {0: 9}, generation=late, refused="stale_generation")
    assert cluster.committed() == {0: 2}


def test_a_partition_kept_over_a_rebalance_is_committed_with_the_former_generation() -> None:
    cluster = two_members()
    before = cluster.member("a").generation
    cluster.assign(a=[0], b=[1, 2, 3])
    cluster.commit("a", {0: 3, 1: 4}, generation=before)
    assert cluster.committed() == {0: 3, 1: 4}


def test_a_group_without_members_accepts_commits_of_self_assigned_consumers() -> None:
    cluster = GroupCluster()
    cluster.commit("", {0: 5})
    assert cluster.committed() == {0: 5}
    assert cluster.group().state is GroupState.EMPTY
    cluster.commit("", {9: 5}, refused="unknown_partition")


def test_committed_offsets_are_bounded_and_existing_ones_may_rise(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = GroupCluster()
    monkeypatch.setattr("metadata.image.groups.MAX_COMMITTED_OFFSETS", 3)
    cluster.commit("", {0: 1, 1: 1})
    cluster.commit("", {2: 1, 3: 1}, refused="invalid_request")
    cluster.commit("", {2: 1})
    cluster.commit("", {3: 1}, refused="invalid_request")
    cluster.commit("", {3: 1}, group="others", refused="invalid_request")
    cluster.commit("", {0: 2, 2: 2})
    assert cluster.committed() == {0: 2, 1: 1, 2: 2}


def offsets(**numbers: int) -> tuple[OffsetToCommit, ...]:
    return tuple(OffsetToCommit(TOPIC, int(name[1:]), Offset(offset)) for name, offset in numbers.items())


def test_a_reset_lowers_committed_offsets_of_a_group_without_members_s8() -> None:
    cluster = two_members()
    cluster.commit("a", {0: 10})
    epoch = cluster.group().epoch
    cluster.change(Reset("readers", epoch, NOW_MS, offsets(p0=3)), refused="group_not_empty")
    for name in ("a", "b"):
        cluster.change(Leave("readers", name, cluster.member(name).incarnation, NOW_MS))
    cluster.change(Reset("readers", epoch, NOW_MS, offsets(p0=3)), refused="stale_group_epoch")
    cluster.change(Reset("readers", cluster.group().epoch, NOW_MS, offsets(p0=3)))
    assert cluster.committed() == {0: 3}
    cluster.change(Reset("new", -1, NOW_MS, offsets(p1=4), (-1,)))
    assert cluster.committed("new") == {1: 4}
    cluster.change(Reset("new", -1, NOW_MS, offsets(p1=5)), refused="stale_group_epoch")


def test_a_planned_reset_is_executed_exactly_or_not_at_all_s8() -> None:
    """Commits of a group without members change no epoch: a plan depends on the offsets themselves."""
    cluster = GroupCluster()
    cluster.commit("", {0: 5})
    epoch = cluster.group().epoch
    planned = Reset("readers", epoch, NOW_MS, offsets(p0=3, p1=7), (5, -1))
    cluster.commit("", {1: 2})
    cluster.change(planned, refused="offset_moved")
    assert cluster.committed() == {0: 5, 1: 2}, "all or nothing"
    cluster.change(Reset("readers", epoch, NOW_MS, offsets(p0=3, p1=7), (6, 2)), refused="offset_moved")
    cluster.change(Reset("readers", epoch, NOW_MS, offsets(p0=3, p1=7), (5,)), refused="invalid_request")
    cluster.change(Reset("readers", epoch, NOW_MS, offsets(p0=3, p1=7), (5, 2)))
    assert cluster.committed() == {0: 3, 1: 7}


def test_offsets_expire_after_a_long_time_without_members() -> None:
    cluster = two_members()
    cluster.commit("a", {0: 10}, now_ms=NOW_MS)
    cluster.commit("b", {2: 10}, now_ms=NOW_MS + 10)
    expire = Expire("readers", cluster.group().epoch, cluster.term, NOW_MS + 5)
    cluster.change(expire, refused="stale_group_epoch")
    for name in ("a", "b"):
        cluster.change(Leave("readers", name, cluster.member(name).incarnation, NOW_MS + 4))
    cluster.change(expire, refused="stale_group_epoch")
    epoch = cluster.group().epoch
    cluster.change(Expire("readers", epoch, cluster.term, NOW_MS + 4), refused="stale_group_epoch")
    cluster.change(Expire("readers", epoch, cluster.term + 1, NOW_MS + 5), refused="not_coordinator")
    cluster.change(Expire("readers", epoch, cluster.term, NOW_MS + 5))
    assert cluster.committed() == {2: 10}
    cluster.change(Expire("readers", epoch, cluster.term, NOW_MS + 11))
    assert "readers" not in cluster.image.groups.by_id
    assert cluster.image.groups.offset_count == 0


def test_a_group_is_deleted_if_it_has_no_members() -> None:
    cluster = two_members()
    cluster.commit("a", {0: 10})
    cluster.change(Delete("readers"), refused="group_not_empty")
    for name in ("a", "b"):
        cluster.change(Leave("readers", name, cluster.member(name).incarnation, NOW_MS))
    cluster.change(Delete("readers"))
    cluster.change(Delete("readers"), refused="unknown_group")
    assert cluster.view.groups.groups() == []


def test_offsets_are_deleted_where_no_member_reads_s8() -> None:
    cluster = two_members()
    for name in ("a", "b"):
        cluster.commit(name, {p.partition: 10 for p in cluster.member(name).owned})
    everything = pack_partitions(tps(0, 1, 2, 3))
    cluster.change(DeleteOffsets("readers", everything), refused="group_not_empty")
    before = cluster.committed()
    assert before, "a refused deletion changes nothing"
    for name in ("a", "b"):
        cluster.change(Leave("readers", name, cluster.member(name).incarnation, NOW_MS))
    cluster.change(DeleteOffsets("nobody", everything), refused="unknown_group")
    first = min(before)
    cluster.change(DeleteOffsets("readers", pack_partitions(tps(first))))
    assert cluster.committed() == {p: offset for p, offset in before.items() if p != first}
    cluster.change(DeleteOffsets("readers", pack_partitions(tps(first))))  # idempotent
    cluster.change(DeleteOffsets("readers", everything))
    assert "readers" not in cluster.image.groups.by_id, "as after an expiry, no empty group is left"
    assert cluster.image.groups.offset_count == 0


# --- Topics ----------------------------------------------------------------------------------------------------------


def test_a_deleted_topics_partitions_have_no_owner_and_its_offsets_are_gone() -> None:
    cluster = two_members()
    cluster.commit("a", {0: 10})
    cluster.do(DeleteTopic(TOPIC))
    assert cluster.owned("a") == []
    assert cluster.committed() == {}
    assert cluster.view.groups.offsets("readers") == {}
    cluster.commit("a", {0: 11}, refused="stale_generation")


def test_a_topics_deletion_has_the_same_effects_on_every_node_s7() -> None:
    """A node that was restored from a snapshot has groups and offsets in another order than one that saw the
    commits."""
    cluster = two_members()
    cluster.commit("b", {3: 1})
    cluster.commit("a", {1: 1, 0: 2})
    cluster.commit("", {0: 1}, group="console")
    copy = decode_snapshot(encode_snapshot(cluster.image))
    entry = (cluster.image.index + 1, 1, Envelope(ENVELOPE_VERSION, None, None, DeleteTopic(TOPIC)))
    assert apply(copy, *entry) == apply(cluster.image, *entry)


def test_short_lived_groups_leave_nothing_behind() -> None:
    """A topic may live for years, and many short-lived groups read it."""
    cluster = two_members()
    for number in range(20):
        cluster.commit("", {0: 1}, group=f"console-{number}")
        cluster.change(Delete(f"console-{number}"))
    assert [group.group_id for group in cluster.image.groups.of_topic(TOPIC)] == ["readers"]
    index = cluster.image.groups.index_facts()
    assert (index.groups_of, index.topics_of) == ({TOPIC: ("readers",)}, {"readers": (TOPIC,)})
    cluster.do(DeleteTopic(TOPIC))
    assert cluster.image.groups.index_facts().groups_of == {}


def test_new_partitions_are_assigned_in_the_same_epoch() -> None:
    cluster = two_members()
    cluster.do(AddPartitions(TOPIC, 4, ((BrokerId(0),),)))
    cluster.assign(a=[0, 1, 4], b=[2, 3])
    assert cluster.owned("a") == [0, 1, 4]


# --- Followers -------------------------------------------------------------------------------------------------------


def test_views_and_snapshots_contain_everything() -> None:
    cluster = two_members()
    cluster.change(join("c", instance="static", pattern="o.*"))
    cluster.assign(a=[0], b=[2, 3], c=[1])
    cluster.commit("a", {0: 10, 1: 3})
    restored = decode_snapshot(encode_snapshot(cluster.image))
    assert restored.groups.by_id == cluster.image.groups.by_id
    assert restored.groups.copy_offsets() == cluster.image.groups.copy_offsets()
    assert restored.groups.offset_count == 2
    view = ClusterView()
    view.on_events(restored.index, diff(ClusterImage(), restored))
    for seen in (view, cluster.view):
        assert seen.groups.groups() == [cluster.group()]
        assert dict(seen.groups.offsets("readers")) == dict(cluster.image.groups.offsets_of("readers"))


def test_a_difference_removes_deleted_state() -> None:
    cluster = two_members()
    cluster.commit("a", {0: 10, 1: 3})
    cluster.commit("", {0: 1}, group="other")
    old = decode_snapshot(encode_snapshot(cluster.image))
    view = ClusterView()
    view.on_events(old.index, diff(ClusterImage(), old))
    cluster.change(Delete("other"))
    cluster.do(DeleteTopic(TOPIC))
    view.on_events(cluster.image.index, diff(old, cluster.image))
    assert [group.group_id for group in view.groups.groups()] == ["readers"]
    assert dict(view.groups.offsets("readers")) == {}


def test_partitions_are_sent_by_topic() -> None:
    assert pack_partitions(tps(2, 0)) == (TopicPartitions(TOPIC, (0, 2)),)
