"""HTTP consumers in the image: one owner at a time, and the fence of all others (S8)."""

from __future__ import annotations

from typing import Any

from metadata.commands.cluster import DeleteTopic, SetFeatureLevel
from metadata.commands.groups import Commit, Leave, OffsetToCommit, TopicPartitions
from metadata.commands.instances import (
    MAX_INSTANCES,
    AnyGroupChange,
    ChangeGroupsAndInstances,
    ClaimInstance,
    PutInstance,
    RemoveInstance,
    SubscribeInstance,
)
from metadata.commands.results import GroupsChanged, Refused
from metadata.image.image import ClusterImage
from metadata.records.instances import InstanceRecord
from metadata.snapshot.encoder import encode_snapshot
from metadata.view import ClusterView
from raftlog.model import BrokerId, Offset
from raftlog.version import FEATURE_LEVEL
from tests.support.metadata.at_once import decode_snapshot, diff
from tests.support.metadata.cluster import TOPIC
from tests.support.metadata.groups import NOW_MS, GroupCluster, join, tps


class Consumers(GroupCluster):
    """A cluster of one broker at the newest feature level."""

    def __init__(self) -> None:
        super().__init__()
        self.do(SetFeatureLevel(FEATURE_LEVEL))

    def instance(self, name: str = "c1") -> InstanceRecord:
        found = self.image.instances.instance("readers", name)
        assert found is not None
        return found

    def owner(self, broker: int = 0) -> tuple[Any, Any]:
        return BrokerId(broker), self.incarnation(broker)

    def carry_out(self, *changes: AnyGroupChange, principal: str = "", refused: str = "") -> None:
        result = self.apply(ChangeGroupsAndInstances(changes, (principal,) * len(changes)))
        assert isinstance(result, GroupsChanged), result
        assert [one.code for one in result.refusals] == ([refused] if refused else []), result

    def put(self, name: str = "c1", expected: int = -1, *, principal: str = "", refused: str = "") -> None:
        put = PutInstance("readers", name, "binary", "earliest", False, 1, 1_000, expected, *self.owner(), NOW_MS)
        self.carry_out(put, principal=principal, refused=refused)

    def claim(self, name: str = "c1", *, epoch: int | None = None, refused: str = "") -> None:
        at = self.instance(name).epoch if epoch is None else epoch
        self.carry_out(ClaimInstance("readers", name, at, *self.owner()), refused=refused)

    def subscribe(
        self,
        *topics: str,
        name: str = "c1",
        partitions: tuple[int, ...] = (),
        epoch: int | None = None,
        refused: str = "",
    ) -> None:
        at = self.instance(name).epoch if epoch is None else epoch
        packed = (TopicPartitions(TOPIC, partitions),) if partitions else ()
        self.carry_out(SubscribeInstance("readers", name, at, topics, "", packed, NOW_MS), refused=refused)

    def commit_as(self, epoch: int, offset: int, refused: str = "") -> None:
        named = (OffsetToCommit(TOPIC, 0, Offset(offset)),)
        self.change(Commit("readers", "c1", epoch, self.member("c1").generation, NOW_MS, named), refused=refused)


def subscribed() -> Consumers:
    cluster = Consumers()
    cluster.put()
    cluster.subscribe("orders")
    cluster.rebalance()
    return cluster


def test_a_subscription_makes_the_consumer_a_member_whose_incarnation_is_the_epoch() -> None:
    cluster = subscribed()
    assert cluster.instance().epoch == cluster.member("c1").incarnation
    assert cluster.owned("c1") == [0, 1, 2, 3]


def test_a_claim_fences_the_owner_before_s8() -> None:
    cluster = subscribed()
    before = cluster.instance().epoch
    cluster.commit_as(before, 5)
    cluster.claim()
    assert cluster.instance().epoch == cluster.image.index == cluster.member("c1").incarnation
    assert cluster.owned("c1") == [0, 1, 2, 3], "the partitions stay"
    cluster.commit_as(before, 9, refused="member_fenced")
    cluster.claim(epoch=before, refused="instance_moved")
    cluster.subscribe("orders", epoch=before, refused="instance_moved")
    cluster.carry_out(RemoveInstance("readers", "c1", before, NOW_MS), refused="instance_moved")
    assert cluster.image.groups.offsets_of("readers")[tps(0)[0]].offset == 5


def test_of_two_claims_one_wins() -> None:
    cluster = subscribed()
    claim = ClaimInstance("readers", "c1", cluster.instance().epoch, *cluster.owner())
    cluster.carry_out(claim)
    cluster.carry_out(claim, refused="instance_moved")


def test_an_owner_is_a_registered_broker_in_its_present_incarnation() -> None:
    cluster = subscribed()
    epoch = cluster.instance().epoch
    for owner in ((BrokerId(7), 1), (BrokerId(0), int(cluster.incarnation(0)) + 1)):
        cluster.carry_out(ClaimInstance("readers", "c1", epoch, *owner), refused="stale_incarnation")  # type: ignore[arg-type]
    put = PutInstance("readers", "c2", "binary", "earliest", False, 1, 1, -1, BrokerId(7), 1, NOW_MS)  # type: ignore[arg-type]
    cluster.carry_out(put, refused="stale_incarnation")
    assert cluster.instance().epoch == epoch and cluster.image.instances.count == 1


def test_a_taken_name_begins_without_a_subscription() -> None:
    cluster = subscribed()
    cluster.put(expected=-1, refused="instance_moved")
    cluster.put(expected=cluster.instance().epoch)
    assert not cluster.instance().subscribes
    assert "c1" not in cluster.group().members


def test_names_of_consumers_and_of_other_members_are_apart() -> None:
    cluster = subscribed()
    cluster.change(join("c1"), refused="invalid_request")
    cluster.change(join("other"))
    cluster.put("other", refused="invalid_request")


def test_a_member_that_the_coordinator_removed_comes_back_with_a_claim() -> None:
    cluster = subscribed()
    cluster.change(Leave("readers", "c1", cluster.member("c1").incarnation, NOW_MS))
    assert "c1" not in cluster.group().members
    cluster.claim()
    assert cluster.member("c1").incarnation == cluster.instance().epoch


def test_partitions_are_assigned_without_a_membership() -> None:
    cluster = Consumers()
    cluster.put()
    cluster.subscribe(partitions=(2, 0, 2))
    assert cluster.instance().partitions == tuple(tps(0, 2))
    assert "readers" not in cluster.image.groups.by_id
    cluster.subscribe("orders", partitions=(1,), refused="invalid_request")
    cluster.subscribe(partitions=(9,), refused="unknown_partition")
    cluster.subscribe("orders")
    assert cluster.instance().partitions == () and "c1" in cluster.group().members
    cluster.subscribe()
    assert "c1" not in cluster.group().members


def test_a_removed_consumer_leaves_nothing() -> None:
    cluster = subscribed()
    cluster.carry_out(RemoveInstance("readers", "c1", cluster.instance().epoch, NOW_MS))
    assert cluster.image.instances.count == 0 and "c1" not in cluster.group().members
    cluster.carry_out(RemoveInstance("readers", "c1", 1, NOW_MS), refused="unknown_instance")


def test_a_deleted_topic_takes_its_partitions_along() -> None:
    cluster = Consumers()
    cluster.put()
    cluster.subscribe(partitions=(0, 1))
    cluster.do(DeleteTopic(TOPIC))
    assert cluster.instance().partitions == ()


def test_a_principal_has_a_share_of_all_consumers_s11() -> None:
    cluster = Consumers()
    mine = MAX_INSTANCES // 4
    for first in range(0, mine, 500):
        puts = [
            PutInstance("readers", f"c{number}", "binary", "latest", False, 1, 1, -1, *cluster.owner(), NOW_MS)
            for number in range(first, min(first + 500, mine))
        ]
        cluster.carry_out(*puts, principal="alice")
    cluster.put("more", principal="alice", refused="quota_exceeded")
    cluster.put("more", principal="bob")
    cluster.put("c0", cluster.instance("c0").epoch, principal="alice")
    cluster.carry_out(RemoveInstance("readers", "c1", cluster.instance("c1").epoch, NOW_MS), principal="bob")
    cluster.put("again", principal="alice")


def test_older_clusters_refuse_the_command() -> None:
    cluster = GroupCluster()
    cluster.image.feature_level = 6
    refused = cluster.apply(ChangeGroupsAndInstances((), ()))
    assert isinstance(refused, Refused) and refused.code == "unsupported_version"


def test_snapshots_and_views_have_them() -> None:
    cluster = subscribed()
    cluster.put("c2")
    cluster.subscribe(partitions=(1,), name="c2")
    packed = encode_snapshot(cluster.image)
    read = decode_snapshot(packed)
    assert encode_snapshot(read) == packed
    assert list(read.instances.records()) == list(cluster.image.instances.records())
    view = ClusterView()
    view.on_events(read.index, diff(ClusterImage(), read))
    assert list(view.instances.records()) == list(read.instances.records())
    cluster.carry_out(RemoveInstance("readers", "c1", cluster.instance().epoch, NOW_MS))
    view.on_events(cluster.image.index, diff(read, cluster.image))
    assert [record.name for record in view.instances.records()] == ["c2"]
