"""The effect of each command on the cluster image, except topics (`test_topics.py`) and elections."""

from __future__ import annotations

import ast
import pathlib

import pytest
from msgspec.structs import replace

import metadata
from metadata.commands.cluster import (
    AlterIsr,
    CreateTopic,
    DeleteTopic,
    FenceBroker,
    GrantProducerIds,
    NoOp,
    ReplaceRegistration,
    SetFeatureLevel,
    UnfenceBroker,
)
from metadata.commands.envelope import ClientSession, decode, encode
from metadata.commands.fields import IsrMember
from metadata.commands.results import Done, IsrAltered, ProducerIdsGranted, Refused, Registered
from metadata.image import client_sessions as image_sessions
from metadata.image.apply import MAX_PRODUCER_IDS_PER_GRANT
from metadata.image.brokers import MAX_BROKERS
from metadata.image.image import ClusterImage
from metadata.image.invariants import check
from metadata.records.events import FeatureLevelChanged
from raftlog.errors import CODES, InvariantViolation
from raftlog.model import NO_BROKER, NO_INCARNATION, BrokerId, Incarnation, TopicId
from tests.support.metadata.at_once import apply
from tests.support.metadata.cluster import TP, Cluster, report

OTHER = TopicId(b"topic-number-002")


def brokers(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(number) for number in numbers)


# --- Invariants ------------------------------------------------------------------------------------------------------


def test_an_incarnation_without_a_leader_is_reported_with_its_partition() -> None:
    cluster = Cluster(1)
    cluster.fence(0)
    record = cluster.image.partitions[TP]
    assert not record.has_leader
    cluster.image.put_partition(replace(record, leader_incarnation=Incarnation(7)))
    with pytest.raises(InvariantViolation, match="an incarnation without a leader") as told:
        check(cluster.image)
    assert str(TP) in str(told.value)


# --- Registration ----------------------------------------------------------------------------------------------------


def test_a_broker_starts_fenced_in_a_new_incarnation() -> None:
    cluster = Cluster(0)
    first = cluster.start(0)
    assert cluster.image.brokers[BrokerId(0)].fenced
    assert not cluster.view.alive(BrokerId(0))
    second = cluster.start(0)
    assert second > first
    assert first == 1, "the incarnation is the index of the registration"


def test_registering_the_same_start_twice_is_the_same_incarnation() -> None:
    cluster = Cluster()
    incarnation = cluster.incarnation(1)
    again = cluster.do(cluster.registration(1, start_number=1))
    assert again == Registered(incarnation)
    assert cluster.events == []
    assert cluster.view.alive(BrokerId(1))


def test_a_late_registration_of_an_earlier_start_is_refused() -> None:
    cluster = Cluster()
    cluster.restart(1)
    assert cluster.refusal(cluster.registration(1, start_number=1)) == "stale_incarnation"


def test_a_clean_restart_loses_leaderships_and_nothing_else() -> None:
    cluster = Cluster()
    before = cluster.partition
    cluster.start(0, report(0, 9))
    after = cluster.partition
    assert (after.leader, after.leader_incarnation) == (NO_BROKER, NO_INCARNATION)
    assert after.leader_epoch == before.leader_epoch + 1
    assert after.partition_epoch == before.partition_epoch + 1
    assert (after.isr, after.commit_set, after.not_eligible) == ((0, 1, 2), (0, 1, 2), ())


def test_a_clean_restart_of_a_follower_changes_no_partition() -> None:
    cluster = Cluster()
    before = cluster.partition
    cluster.start(1, report(0, 9))
    assert cluster.partition is before


@pytest.mark.parametrize("how", ["cut", "other directory", "not reported"])
def test_a_follower_that_cannot_vouch_for_its_log_leaves_the_isr(how: str) -> None:
    cluster = Cluster()
    before = cluster.partition
    if how == "cut":
        cluster.start(1, report(0, 9, cut=True))
    elif how == "other directory":
        cluster.start(1, report(0, 9), disk=9)
    else:
        cluster.do(cluster.registration(1, ()))
    assert cluster.partition.isr == cluster.partition.commit_set == (0, 2)
    assert cluster.partition.leader == 0
    assert cluster.partition.leader_epoch == before.leader_epoch
    assert cluster.partition.partition_epoch == before.partition_epoch + 1


def test_reports_of_strange_replicas_are_ignored() -> None:
    cluster = Cluster()
    before = cluster.partition
    strange = report(0, 9, cut=True, tp=replace(before.topic_partition, partition=77))
    cluster.start(1, report(), strange)
    assert cluster.partition is before


def test_a_broker_of_an_older_release_cannot_join_a_newer_cluster() -> None:
    cluster = Cluster(0)
    cluster.do(cluster.registration(0, feature_level=2))
    cluster.do(SetFeatureLevel(2))
    assert cluster.refusal(cluster.registration(1, feature_level=1)) == "unsupported_version"


def test_the_number_of_brokers_is_bounded() -> None:
    cluster = Cluster(0)
    image = cluster.image
    for number in range(MAX_BROKERS):
        apply(image, number + 1, 1, decode(encode(cluster.registration(number))))
    assert cluster.refusal(cluster.registration(MAX_BROKERS)) == "invalid_request"
    assert isinstance(cluster.do(cluster.registration(3)), Registered)


# --- Fencing ---------------------------------------------------------------------------------------------------------


def test_fencing_takes_leadership_and_membership() -> None:
    cluster = Cluster()
    before = cluster.partition
    cluster.fence(0)
    after = cluster.partition
    assert (after.leader, after.isr) == (NO_BROKER, (1, 2))
    assert after.leader_epoch == before.leader_epoch + 1
    assert cluster.view.broker(BrokerId(0)) == cluster.image.brokers[BrokerId(0)]
    assert not cluster.view.alive(BrokerId(0))


def test_the_last_member_stays_when_it_is_fenced() -> None:
    cluster = Cluster()
    cluster.fence(0, 1, 2)
    assert cluster.partition.isr == (2,)
    assert cluster.partition.leader == NO_BROKER


def test_a_broker_that_registered_and_died_leaves_the_isr_when_fenced_again() -> None:
    cluster = Cluster()
    cluster.start(1, report())
    assert cluster.partition.isr == (0, 1, 2)
    cluster.fence(1)
    assert cluster.partition.isr == (0, 2)
    cluster.fence(1)
    assert cluster.events == []


@pytest.mark.parametrize("kind", [FenceBroker, UnfenceBroker])
def test_an_older_incarnation_is_neither_fenced_nor_unfenced(kind: type[FenceBroker] | type[UnfenceBroker]) -> None:
    cluster = Cluster()
    old = cluster.incarnation(1)
    cluster.start(1, report())
    assert cluster.refusal(kind(BrokerId(1), old)) == "stale_incarnation"
    assert cluster.refusal(kind(BrokerId(8), old)) == "stale_incarnation"


def test_unfencing_twice_is_once() -> None:
    cluster = Cluster()
    cluster.unfence(1)
    assert cluster.events == []


# --- The controller's term -------------------------------------------------------------------------------------------


def test_a_command_of_another_term_is_refused() -> None:
    cluster = Cluster()
    command = FenceBroker(BrokerId(0), cluster.incarnation(0))
    cluster.term = 4
    for term in (3, 5):
        result = cluster.apply(command, term=term)
        assert isinstance(result, Refused)
        assert result.code == "not_controller"
    assert cluster.apply(command, term=4) == Done()


def test_entries_come_in_order() -> None:
    image = ClusterImage()
    apply(image, 5, 1, decode(encode(NoOp())))
    with pytest.raises(InvariantViolation):
        apply(image, 5, 1, decode(encode(NoOp())))
    apply(image, 9, 1, decode(encode(NoOp())))
    assert image.index == 9


# --- ISR changes -----------------------------------------------------------------------------------------------------


def test_a_leader_shrinks_and_expands() -> None:
    cluster = Cluster()
    epoch = cluster.partition.partition_epoch
    assert cluster.do(cluster.isr_proposal(0, 1)) == IsrAltered(cluster.partition.partition_epoch)
    assert cluster.partition.partition_epoch == epoch + 1
    assert cluster.partition.isr == (0, 1)
    cluster.do(cluster.isr_proposal(0, 1, 2))
    assert cluster.partition.isr == (0, 1, 2)


def test_an_unchanged_isr_is_still_a_new_version() -> None:
    """A proposal therefore always ends with a higher partition epoch, and a copy of it is stale."""
    cluster = Cluster()
    proposal = cluster.isr_proposal(0, 1, 2)
    assert isinstance(cluster.do(proposal), IsrAltered)
    assert cluster.refusal(proposal) == "stale_partition_epoch"


def test_a_starting_member_may_be_kept() -> None:
    cluster = Cluster()
    cluster.start(1, report())
    cluster.set_isr(0, 1)


def alter(proposal: AlterIsr, **changes: object) -> AlterIsr:
    fields = {name: getattr(proposal, name) for name in AlterIsr.__struct_fields__}
    return AlterIsr(**{**fields, **changes})


def test_an_isr_proposal_by_any_other_than_its_leader_is_refused() -> None:
    cluster = Cluster()
    cluster.elect(1)
    good = cluster.isr_proposal(0, 1)
    cases = {
        "unknown_partition": {"partition": 7},
        "fenced_leader_epoch": {"leader_epoch": good.leader_epoch - 1},
        "unknown_leader_epoch": {"leader_epoch": good.leader_epoch + 1},
        "not_leader": {"leader": BrokerId(0)},
        "stale_incarnation": {"leader_incarnation": Incarnation(good.leader_incarnation - 1)},
        "stale_partition_epoch": {"partition_epoch": good.partition_epoch - 1},
    }
    for code, changes in cases.items():
        assert cluster.refusal(alter(good, **changes)) == code
        assert cluster.events == []
    assert isinstance(cluster.do(good), IsrAltered)


@pytest.mark.parametrize("members", [(), (1, 2), (0, 0), (0, 9)])
def test_an_invalid_isr_is_refused(members: tuple[int, ...]) -> None:
    cluster = Cluster(4)
    topic = CreateTopic("three", OTHER, (brokers(0, 1, 2),))
    cluster.do(topic)
    good = cluster.isr_proposal(0, 1)
    isr = tuple(IsrMember(BrokerId(m), cluster.incarnation(m) if m < 4 else Incarnation(1)) for m in members)
    assert cluster.refusal(alter(good, isr=isr)) == "invalid_request"


def replacing(cluster: Cluster, replaces: int, *, disk: int, start: int = 1, level: int = 5) -> ReplaceRegistration:
    registration = cluster.registration(1, disk=disk, start_number=start, feature_level=level)
    return ReplaceRegistration.after(registration, Incarnation(replaces))


def test_a_late_registration_from_another_directory_does_not_replace_a_later_one_s5() -> None:
    """A process on the old directory proposes; the broker restarts on a new one; then the old proposal arrives."""
    cluster = Cluster(0)
    first = cluster.do(replacing(cluster, NO_INCARNATION, disk=1))
    assert isinstance(first, Registered)
    late = replacing(cluster, first.incarnation, disk=1, start=2)
    second = cluster.do(replacing(cluster, first.incarnation, disk=9))
    assert isinstance(second, Registered)
    before = cluster.image.brokers[BrokerId(1)]
    assert cluster.refusal(late) == "stale_incarnation"
    assert cluster.image.brokers[BrokerId(1)] == before
    back = cluster.do(replacing(cluster, second.incarnation, disk=1, start=3))
    assert isinstance(back, Registered) and back.incarnation > second.incarnation, "a disk that was found again"


def test_a_repeated_registration_gets_its_first_answer_whatever_it_replaced() -> None:
    cluster = Cluster(0)
    asked = replacing(cluster, NO_INCARNATION, disk=1)
    assert cluster.do(asked) == cluster.do(asked)
    assert cluster.refusal(replacing(cluster, NO_INCARNATION, disk=1, start=2)) == "stale_incarnation"


def test_the_first_registration_of_a_new_cluster_sets_its_feature_level() -> None:
    cluster = Cluster(0)
    cluster.do(replacing(cluster, NO_INCARNATION, disk=1))
    assert cluster.view.feature_level == cluster.image.feature_level == 5
    assert cluster.refusal(cluster.registration(2, feature_level=4)) == "unsupported_version"


def test_a_first_registration_at_the_clusters_own_level_changes_none() -> None:
    cluster = Cluster(0)
    level = cluster.image.feature_level
    cluster.do(replacing(cluster, NO_INCARNATION, disk=1, level=level))
    assert cluster.image.feature_level == level
    assert not any(isinstance(event, FeatureLevelChanged) for event in cluster.events)


def test_a_registration_does_not_raise_the_level_of_a_running_cluster() -> None:
    """An upgrade can be reverted until an operator, or the first use of a new feature, finalizes it."""
    cluster = Cluster(1, feature_level=4)
    cluster.do(replacing(cluster, NO_INCARNATION, disk=1))
    assert cluster.image.feature_level == 1


# --- Producer ids and feature levels ---------------------------------------------------------------------------------


def test_producer_ids_are_granted_once() -> None:
    cluster = Cluster()
    grant = GrantProducerIds(BrokerId(1), cluster.incarnation(1), 1000)
    assert cluster.do(grant) == ProducerIdsGranted(0, 1000)  # type: ignore[arg-type]
    assert cluster.do(grant) == ProducerIdsGranted(1000, 1000)  # type: ignore[arg-type]
    old = cluster.incarnation(1)
    cluster.start(1)
    assert cluster.refusal(GrantProducerIds(BrokerId(1), old, 1)) == "stale_incarnation"
    for count in (0, MAX_PRODUCER_IDS_PER_GRANT + 1):
        assert cluster.refusal(GrantProducerIds(BrokerId(1), cluster.incarnation(1), count)) == "invalid_request"


def test_the_feature_level_rises_when_all_support_it() -> None:
    cluster = Cluster(0)
    cluster.do(cluster.registration(0, feature_level=2))
    cluster.do(cluster.registration(1, feature_level=1))
    assert cluster.refusal(SetFeatureLevel(2)) == "unsupported_version"
    cluster.do(cluster.registration(1, feature_level=3))
    cluster.do(SetFeatureLevel(2))
    assert cluster.view.feature_level == cluster.image.feature_level == 2
    assert cluster.refusal(SetFeatureLevel(1)) == "unsupported_version"
    assert cluster.do(SetFeatureLevel(2)) == Done()
    assert cluster.events == []


# --- Client sessions -------------------------------------------------------------------------------------------------


def session(sequence: int, applied_index: int) -> ClientSession:
    return ClientSession(b"s" * 16, sequence, applied_index)


def test_a_retry_gets_the_first_answer_and_does_nothing() -> None:
    cluster = Cluster()
    grant = GrantProducerIds(BrokerId(1), cluster.incarnation(1), 10)
    mine = session(0, cluster.image.index)
    first = cluster.apply(grant, session=mine)
    assert cluster.apply(grant, session=mine) == first
    assert cluster.image.next_producer_id == 10
    assert cluster.apply(grant, session=session(1, cluster.image.index)) != first
    other = ClientSession(b"t" * 16, 0, 0)
    assert cluster.apply(grant, session=other) == ProducerIdsGranted(20, 10)  # type: ignore[arg-type]


def test_a_refusal_is_an_answer_too() -> None:
    cluster = Cluster()
    mine = session(0, cluster.image.index)
    refused = cluster.apply(DeleteTopic(OTHER), session=mine)
    cluster.do(CreateTopic("other", OTHER, (brokers(0, 1, 2),)))
    assert cluster.apply(DeleteTopic(OTHER), session=mine) == refused
    assert cluster.view.topic("other") is not None


def test_a_dropped_answer_is_unknown_and_a_new_command_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_sessions, "MAX_ANSWERS", 100)
    cluster = Cluster()
    image = cluster.image
    before = image.index
    mine = session(0, before)
    grant = GrantProducerIds(BrokerId(1), cluster.incarnation(1), 1)
    cluster.apply(grant, session=mine)
    for sequence in range(100):
        envelope = decode(encode(NoOp(), session=ClientSession(b"t" * 16, sequence, image.index)))
        apply(image, image.index + 1, 1, envelope)
    assert len(image.sessions.answers) == 100
    retried = cluster.apply(grant, session=mine)
    assert isinstance(retried, Refused)
    assert retried.code == "outcome_unknown"
    assert image.next_producer_id == 1
    assert isinstance(cluster.apply(grant, session=session(1, image.index)), ProducerIdsGranted)


def test_a_deposed_controllers_command_uses_no_session() -> None:
    cluster = Cluster()
    mine = session(0, cluster.image.index)
    assert isinstance(cluster.apply(NoOp(), term=9, session=mine), Refused)
    assert cluster.apply(NoOp(), session=mine) == Done()


def test_every_refusal_has_a_code_of_the_table() -> None:
    folder = pathlib.Path(metadata.__file__).parent
    codes = set()
    for path in sorted((folder / "image").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Refused":
                (code, _) = node.args
                codes.add(code.value if isinstance(code, ast.Constant) else "internal_error")
    assert len(codes) > 10
    assert codes <= set(CODES)
