"""No principal alone uses up a bound of the cluster, and what it makes belongs to it. S11, S12."""

from __future__ import annotations

import pytest

from metadata.commands.cluster import DeleteTopic, GrantProducerIds, GrantProducerIdsTo, SetFeatureLevel
from metadata.commands.groups import ChangeGroups, ChangeGroupsAs, Commit, Delete, GroupChange, Leave, OffsetToCommit
from metadata.commands.results import GroupsChanged, ProducerIdsGranted, Refused, TransactionsChanged
from metadata.commands.security import ChangeSecurity, PutQuota, RemoveQuota
from metadata.commands.transactions import (
    ChangeTransactionsAs,
    Expire,
    ExpiredBlock,
    ExpiredProducer,
    Initialize,
    OpenBlock,
    RemovePosition,
    TransactionChange,
)
from metadata.image.diff import diff_in_steps
from metadata.image.image import ClusterImage, run
from metadata.records.owners import Owned, OwnedIds
from metadata.records.security import LIMITS_OF_USERS, QuotaLimits
from metadata.snapshot.encoder import encode_snapshot
from metadata.view import ClusterView
from raftlog.model import BrokerId, Offset, ProducerEpoch, ProducerId
from raftlog.transactions import TransactionKey
from raftlog.version import FEATURE_LEVEL
from tests.support.metadata.at_once import decode_snapshot
from tests.support.metadata.cluster import TOPIC
from tests.support.metadata.groups import NOW_MS, join
from tests.support.metadata.security import do
from tests.support.metadata.transactions import TransactionCluster, commit, moves, output


class PrincipalCluster(TransactionCluster):
    """A cluster of the newest level, and changes of principals."""

    def __init__(self) -> None:
        super().__init__()
        self.do(SetFeatureLevel(FEATURE_LEVEL))

    def group(self, principal: str, change: GroupChange) -> str:
        """Return the code of the refusal; empty if the change was carried out."""
        result = self.apply(ChangeGroupsAs((change,), (principal,)))
        assert isinstance(result, GroupsChanged), result
        return result.refusals[0].code if result.refusals else ""

    def transaction(self, principal: str, change: TransactionChange) -> str:
        result = self.apply(ChangeTransactionsAs((change,), (principal,)))
        assert isinstance(result, TransactionsChanged), result
        return next((answer.code for answer in result.answers), "")

    def grant(self, principal: str, count: int = 10) -> ProducerId:
        """Return the first of the granted ids."""
        command = GrantProducerIdsTo(BrokerId(0), self.incarnation(0), count, principal)
        granted = self.apply(command)
        assert isinstance(granted, ProducerIdsGranted), granted
        return granted.first


@pytest.fixture
def cluster() -> PrincipalCluster:
    return PrincipalCluster()


def quota(cluster: PrincipalCluster, entity: str = "User:alice", **limits: int) -> None:
    do(cluster, PutQuota(entity, QuotaLimits(**limits)))


def offsets(group: str, *numbers: int) -> Commit:
    named = tuple(OffsetToCommit(TOPIC, number, Offset(5)) for number in numbers)
    return Commit(group, "", 0, 0, NOW_MS, named)


def initialize(name: str) -> Initialize:
    return Initialize(name, 60_000, NOW_MS)


# --- Groups and offsets ----------------------------------------------------------------------------------------------


def test_groups_are_counted_for_the_principal_that_made_them(cluster: PrincipalCluster) -> None:
    quota(cluster, groups=2)
    assert cluster.group("alice", join("a", group="one")) == ""
    assert cluster.group("alice", offsets("two", 0)) == ""
    assert cluster.group("alice", join("a", group="three")) == "quota_exceeded"
    assert cluster.group("alice", offsets("three", 0)) == "quota_exceeded"
    assert "three" not in cluster.image.groups.by_id
    # Others are not concerned, and the groups that exist stay usable.
    assert cluster.group("bob", join("b", group="three")) == ""
    assert cluster.group("alice", join("b", group="one")) == ""
    assert cluster.group("alice", join("a", group="three")) == ""
    assert cluster.view.owners.owner(Owned.GROUP, "three") == "bob"
    assert cluster.group("alice", Delete("two")) == ""
    assert cluster.group("alice", offsets("four", 0)) == ""


def test_a_quota_that_is_lowered_ends_no_group(cluster: PrincipalCluster) -> None:
    assert cluster.group("alice", join("a", group="one")) == ""
    quota(cluster, "User:*", groups=0)
    assert cluster.group("alice", join("b", group="one")) == ""
    assert cluster.group("alice", join("a", group="two")) == "quota_exceeded"
    do(cluster, RemoveQuota("User:*"))
    assert cluster.group("alice", join("a", group="two")) == ""


def test_no_principal_alone_has_all_groups(cluster: PrincipalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metadata.image.groups.MAX_GROUPS", 8)
    codes = [cluster.group("stranger", offsets(f"g{number}", 0)) for number in range(8)]
    assert codes == ["", ""] + ["quota_exceeded"] * 6
    assert cluster.group("alice", offsets("hers", 0)) == ""
    # Without security there are no principals, and no shares.
    for number in range(5):
        cluster.change(offsets(f"nobodys-{number}", 0))
    cluster.change(offsets("one-too-many", 0), refused="invalid_request")


def test_committed_offsets_are_counted_for_the_owner_of_the_group(cluster: PrincipalCluster) -> None:
    quota(cluster, committed_offsets=3)
    assert cluster.group("alice", offsets("hers", 0, 1)) == ""
    assert cluster.group("bob", offsets("hers", 2)) == ""
    assert cluster.group("alice", offsets("hers", 3)) == "quota_exceeded"
    assert cluster.group("alice", offsets("hers", 0, 1, 2)) == "", "no more places than before"
    assert cluster.group("alice", offsets("other", 0)) == "quota_exceeded"
    assert "other" not in cluster.image.groups.by_id
    assert cluster.group("alice", Delete("hers")) == ""
    assert cluster.group("alice", offsets("other", 0, 1, 2)) == ""


def test_no_principal_alone_has_all_committed_offsets(
    cluster: PrincipalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metadata.image.groups.MAX_COMMITTED_OFFSETS", 8)
    assert cluster.group("stranger", offsets("one", 0, 1)) == ""
    assert cluster.group("stranger", offsets("two", 0)) == "quota_exceeded"
    assert cluster.group("alice", offsets("hers", 0, 1)) == ""


def test_the_offsets_of_a_deleted_topic_are_given_back(cluster: PrincipalCluster) -> None:
    assert cluster.group("alice", offsets("hers", 0, 1)) == ""
    assert cluster.image.groups.offset_count_of("alice") == 2
    cluster.do(DeleteTopic(TOPIC))
    assert cluster.image.groups.offset_count_of("alice") == 0


def test_an_owner_goes_with_its_group(cluster: PrincipalCluster) -> None:
    assert cluster.group("alice", offsets("hers", 0)) == ""
    assert cluster.group("alice", Delete("hers")) == ""
    cluster.change(offsets("hers", 0))
    assert cluster.image.owners.owner(Owned.GROUP, "hers") == ""
    assert cluster.view.owners.count(Owned.GROUP, "alice") == 0


def test_an_owner_stays_when_the_last_member_leaves(cluster: PrincipalCluster) -> None:
    assert cluster.group("alice", join("a", group="hers")) == ""
    incarnation = cluster.image.groups.by_id["hers"].members["a"].incarnation
    assert cluster.group("bob", Leave("hers", "a", incarnation, NOW_MS)) == ""
    assert cluster.group("bob", join("b", group="hers")) == ""
    assert cluster.image.owners.owner(Owned.GROUP, "hers") == "alice"


# --- Transactional ids, blocks and positions -------------------------------------------------------------------------


def test_transactional_ids_are_limited_until_they_expire(cluster: PrincipalCluster) -> None:
    quota(cluster, transactional_ids=1)
    assert cluster.transaction("alice", initialize("hers")) == ""
    assert cluster.transaction("alice", initialize("other")) == "quota_exceeded"
    assert cluster.transaction("alice", initialize("hers")) == "", "a producer that begins again makes nothing"
    producer = cluster.image.transactions.producer("hers")
    assert producer is not None
    gone = ExpiredProducer("hers", producer.producer_id, producer.epoch)
    assert cluster.transaction("", Expire(cluster.term, (), (gone,), ())) == ""
    assert cluster.transaction("alice", initialize("other")) == ""


def test_blocks_of_producer_ids_are_limited_until_they_expire(cluster: PrincipalCluster) -> None:
    quota(cluster, producer_id_blocks=1)
    assert cluster.transaction("alice", OpenBlock("q", 10, 1_000)) == ""
    assert cluster.transaction("alice", OpenBlock("q", 10, 1_000)) == ""
    assert cluster.transaction("alice", OpenBlock("", 10, 1_000)) == "quota_exceeded"
    assert cluster.transaction("bob", OpenBlock("", 10, 1_000)) == ""
    block = cluster.image.transactions.open_block("q")
    assert block is not None
    assert cluster.transaction("", Expire(cluster.term, (ExpiredBlock(block.first, block.changed),), (), ())) == ""
    assert cluster.transaction("alice", OpenBlock("", 10, 1_000)) == ""


def test_positions_are_limited_until_an_operator_deletes_them(
    cluster: PrincipalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metadata.image.transaction_commit.MAX_POSITIONS", 8)
    two = commit(positions={"one": (-1, 1), "two": (-1, 1)})
    assert cluster.transaction("stranger", two) == ""
    assert cluster.transaction("stranger", commit(positions={"three": (-1, 1)})) == "quota_exceeded"
    assert cluster.transaction("stranger", commit(positions={"one": (1, 2)})) == ""
    assert cluster.transaction("alice", commit(positions={"three": (-1, 1)})) == ""
    assert cluster.transaction("root", RemovePosition("one", 2)) == ""
    assert cluster.transaction("stranger", commit(positions={"four": (-1, 1)})) == ""
    assert cluster.view.owners.count(Owned.POSITION, "stranger") == 2


def test_a_transaction_that_makes_a_group_is_held_to_both_limits(cluster: PrincipalCluster) -> None:
    quota(cluster, groups=1, committed_offsets=1)
    first = cluster.image.transactions.granted_below
    assert cluster.transaction("alice", OpenBlock("", 10, 60_000)) == ""
    key = cluster.image.transactions.blocks()[0].first
    assert key == first
    wide = commit(output(_key(first), {0: 1}), groups=(moves("hers", {0: (-1, 5), 1: (-1, 5)}),))
    assert cluster.transaction("alice", wide) == "quota_exceeded"
    narrow = commit(output(_key(first), {0: 1}), groups=(moves("hers", {0: (-1, 5)}),))
    assert cluster.transaction("alice", narrow) == "", "the refusal changed nothing"
    other = commit(output(_key(first + 1), {0: 1}), groups=(moves("other", {0: (-1, 5)}),))
    assert cluster.transaction("alice", other) == "quota_exceeded"


# --- Producer ids (S12) ----------------------------------------------------------------------------------------------


def test_granted_ids_belong_to_a_principal(cluster: PrincipalCluster) -> None:
    hers, his = cluster.grant("alice"), cluster.grant("bob")
    anyones = cluster.apply(GrantProducerIds(BrokerId(0), cluster.incarnation(0), 5))
    assert isinstance(anyones, ProducerIdsGranted)
    owner = cluster.view.owner_of_unnamed_id
    assert (owner(hers), owner(ProducerId(hers + 9)), owner(his), owner(ProducerId(his + 9))) == (
        "alice",
        "alice",
        "bob",
        "bob",
    )
    assert owner(anyones.first) == owner(ProducerId(his + 100)) == ""


def test_an_id_of_a_block_without_a_name_belongs_to_its_principal(cluster: PrincipalCluster) -> None:
    first = cluster.image.transactions.granted_below
    assert cluster.transaction("alice", OpenBlock("", 10, 60_000)) == ""
    assert cluster.transaction("alice", OpenBlock("named", 10, 60_000)) == ""
    owner = cluster.view.owner_of_unnamed_id
    assert (owner(first), owner(ProducerId(first + 9))) == ("alice", "alice")
    assert owner(ProducerId(first + 10)) == "", "the right to the name decides"


def test_ids_that_follow_one_another_are_one_range_and_ranges_are_bounded(
    cluster: PrincipalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metadata.image.shares.MAX_ID_RANGES_OF_OWNER", 2)
    first = cluster.grant("alice")
    cluster.grant("alice")
    assert cluster.image.owners.ids_of("alice") == [OwnedIds(first, ProducerId(first + 20), "alice")]
    cluster.grant("bob")
    cluster.grant("alice")
    cluster.grant("bob")
    cluster.grant("alice")
    assert [ids.first - first for ids in cluster.image.owners.ids_of("alice")] == [30, 50]
    assert cluster.image.owners.owner_of_id(first) == ""
    monkeypatch.setattr("metadata.image.shares.MAX_ID_RANGES", 4)
    cluster.grant("carol")
    assert [ids.first - first for ids in cluster.view.owners.ids()] == [30, 40, 50, 60]


# --- Copies ----------------------------------------------------------------------------------------------------------


def busy() -> PrincipalCluster:
    cluster = PrincipalCluster()
    assert cluster.group("alice", offsets("hers", 0, 1)) == ""
    assert cluster.transaction("alice", initialize("hers")) == ""
    assert cluster.transaction("bob", OpenBlock("", 10, 60_000)) == ""
    assert cluster.transaction("bob", commit(positions={"his": (-1, 1)})) == ""
    cluster.grant("alice")
    cluster.grant("bob")
    return cluster


def test_owners_are_in_snapshots_and_in_the_events_after_one() -> None:
    cluster = busy()
    restored = decode_snapshot(encode_snapshot(cluster.image))
    assert encode_snapshot(restored) == encode_snapshot(cluster.image)
    assert restored.groups.offset_count_of("alice") == 2
    assert run(diff_in_steps(cluster.image, restored)) == []
    view = ClusterView()
    view.on_events(restored.index, run(diff_in_steps(ClusterImage(), restored)))
    assert dict(view.owners.items()) == dict(restored.owners.items())
    assert view.owners.ids() == restored.owners.ids()
    view.on_events(restored.index, run(diff_in_steps(restored, TransactionCluster().image)))
    assert not any(owners for _, owners in view.owners.items())
    assert view.owners.ids() == []


def test_no_view_knows_an_id_before_its_owner() -> None:
    """A copy that applies the events one by one never takes an owned id for one that belongs to no principal."""
    cluster = busy()
    view = ClusterView()
    for event in run(diff_in_steps(ClusterImage(), cluster.image)):
        view.on_events(view.index, [event])
        for ids in cluster.image.owners.ids():
            known = view.transactions.granted_below > ids.first
            assert not known or view.owner_of_unnamed_id(ids.first) == ids.owner


@pytest.mark.parametrize("field", LIMITS_OF_USERS)
def test_what_has_an_owner_is_no_limit_of_an_address(cluster: PrincipalCluster, field: str) -> None:
    refused = cluster.apply(ChangeSecurity((PutQuota("Address:*", QuotaLimits(**{field: 1})),)))
    assert isinstance(refused, Refused) and refused.code == "invalid_request" and field in refused.detail


def test_principals_need_their_level_and_one_for_each_change(cluster: PrincipalCluster) -> None:
    wrong = cluster.apply(ChangeGroupsAs((offsets("hers", 0),), ()))
    assert isinstance(wrong, Refused) and wrong.code == "invalid_request"
    cluster.image.feature_level = 5
    early = cluster.apply(ChangeGroupsAs((offsets("hers", 0),), ("alice",)))
    assert isinstance(early, Refused) and early.code == "unsupported_version"
    assert isinstance(cluster.apply(ChangeGroups((offsets("hers", 0),))), GroupsChanged)


def _key(producer_id: int) -> TransactionKey:

    return TransactionKey(ProducerId(producer_id), ProducerEpoch(0))
