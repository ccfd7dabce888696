"""Eligibility for leadership, and the schedules that lose records if one rule is removed, as far as the quorum decides
them.

The numbers are those of the schedules that a model checker found. Each test plays the shortest one that breaks a weaker
design, and shows where this one refuses. Three replicas, minimum two, unless stated otherwise.
"""

from __future__ import annotations

import pytest

from metadata.commands.cluster import AlterTopic, ElectLeaders, SetFeatureLevel
from metadata.commands.fields import Election
from metadata.commands.results import Elected, Refused
from metadata.rules.elections import RAISED_MINIMUM_FEATURE_LEVEL
from raftlog.model import NO_BROKER, BrokerId, TopicPartition
from tests.support.metadata.cluster import TOPIC, TP, Cluster, report

# --- Ordinary elections ----------------------------------------------------------------------------------------------


def test_a_new_partition_is_led_by_its_preferred_replica_with_all_in_sync() -> None:
    record = Cluster().partition
    assert (record.leader, record.leader_epoch, record.partition_epoch) == (0, 0, 0)
    assert record.isr == record.commit_set == (0, 1, 2)
    assert record.min_insync_replicas == 2


def test_an_election_raises_both_epochs_and_names_the_incarnation() -> None:
    cluster = Cluster()
    before = cluster.partition
    assert cluster.elect(1) == ""
    after = cluster.partition
    assert after.leader_incarnation == cluster.incarnation(1)
    assert (after.leader_epoch, after.partition_epoch) == (before.leader_epoch + 1, before.partition_epoch + 1)
    assert after.isr == (0, 1, 2)


@pytest.mark.parametrize(
    ("candidate", "incarnation", "partition_epoch", "number", "code"),
    [
        (1, None, 7, 0, "stale_partition_epoch"),
        (1, 1, None, 0, "stale_incarnation"),
        (9, 1, None, 0, "stale_incarnation"),
        (1, None, None, 5, "unknown_partition"),
    ],
)
def test_an_election_by_a_stale_proposer_is_refused(
    candidate: int, incarnation: int | None, partition_epoch: int | None, number: int, code: str
) -> None:
    cluster = Cluster()
    incarnation = cluster.incarnation(candidate) if incarnation is None else incarnation
    epoch = cluster.partition.partition_epoch if partition_epoch is None else partition_epoch
    before = cluster.partition
    result = cluster.apply(ElectLeaders((Election(TOPIC, number, BrokerId(candidate), incarnation, epoch),)))  # type: ignore[arg-type]
    assert isinstance(result, Elected)
    assert isinstance(result.refusals[0], Refused)
    assert result.refusals[0].code == code
    assert cluster.events == []
    assert cluster.partition is before


def test_a_fenced_replica_is_not_elected() -> None:
    cluster = Cluster()
    cluster.fence(0)
    cluster.fence(1)
    assert cluster.elect(1) == "not_eligible"
    assert cluster.elect(2) == ""


def test_a_replica_out_of_sync_is_not_elected_while_the_isr_has_the_minimum() -> None:
    cluster = Cluster()
    cluster.set_isr(0, 1)
    cluster.start(0, report(0, 5))
    assert cluster.elect(2) == "not_eligible"
    assert cluster.elect(2, recovery=True) == "not_eligible"
    assert cluster.elect(1) == ""


def test_the_leader_is_not_deposed_in_favour_of_a_member_of_the_commit_set() -> None:
    cluster = Cluster()
    cluster.fence(1, 2)
    cluster.unfence(1)
    cluster.unfence(2)
    assert (cluster.partition.isr, cluster.partition.commit_set) == ((0,), (0, 2))
    assert cluster.elect(2) == "not_eligible"


def test_electing_the_leader_again_changes_nothing() -> None:
    cluster = Cluster()
    before = cluster.partition
    assert cluster.elect(0) == ""
    assert cluster.partition is before


def test_each_election_of_a_command_is_decided_separately() -> None:
    cluster = Cluster(partitions=3)
    one = cluster.incarnation(1)
    epochs = [cluster.image.partitions[TopicPartition(TOPIC, n)].partition_epoch for n in range(3)]
    elections = [Election(TOPIC, n, BrokerId(1), one, epochs[n]) for n in range(3)]
    elections[1] = Election(TOPIC, 1, BrokerId(1), one, epochs[1] + 1)  # type: ignore[arg-type]
    result = cluster.do(ElectLeaders(tuple(elections)))
    assert isinstance(result, Elected)
    assert [refused is None for refused in result.refusals] == [True, False, True]
    assert [cluster.image.partitions[TopicPartition(TOPIC, n)].leader for n in range(3)] == [1, 0, 1]


# --- The commit set --------------------------------------------------------------------------------------------------


def test_the_commit_set_follows_the_isr_under_a_leader_down_to_the_minimum() -> None:
    cluster = Cluster()
    cluster.fence(2)
    assert cluster.partition.isr == cluster.partition.commit_set == (0, 1)
    cluster.fence(1)
    assert cluster.partition.isr == (0,)
    assert cluster.partition.commit_set == (0, 1)
    cluster.unfence(2)
    cluster.set_isr(0, 2)
    assert cluster.partition.commit_set == (0, 2)


def test_the_commit_set_stays_while_there_is_no_leader() -> None:
    cluster = Cluster()
    cluster.fence(0)
    assert cluster.partition.leader == NO_BROKER
    assert (cluster.partition.isr, cluster.partition.commit_set) == ((1, 2), (0, 1, 2))
    cluster.elect(1)
    assert cluster.partition.commit_set == (1, 2)


def test_below_the_minimum_a_member_of_the_commit_set_is_elected_alone() -> None:
    cluster = Cluster()
    cluster.fence(2, 1)
    cluster.fence(0)
    cluster.unfence(1)
    assert (cluster.partition.isr, cluster.partition.commit_set) == ((0,), (0, 1))
    assert cluster.elect(2) == "not_eligible"
    assert cluster.elect(1) == ""
    assert (cluster.partition.isr, cluster.partition.commit_set) == ((1,), (0, 1))
    cluster.unfence(0)
    cluster.set_isr(0, 1)
    assert cluster.partition.commit_set == (0, 1)


def test_an_isr_at_its_minimum_of_one_does_not_keep_out_a_returned_leader() -> None:
    """Minimum one: 0 led with all in sync; all three fall silent one after the other; only 0 returns. There was no
    leader since, so it has everything (S10)."""
    cluster = Cluster(min_insync_replicas=1)
    cluster.fence(0, 1, 2)
    assert (cluster.partition.isr, cluster.partition.commit_set) == ((2,), (0, 1, 2))
    cluster.unfence(0)
    assert cluster.elect(0) == ""
    assert cluster.partition.isr == cluster.partition.commit_set == (0,)


def test_with_a_minimum_of_one_a_recovered_leader_is_the_whole_commit_set() -> None:
    """It acknowledges alone from then on: no former member may ever count as complete again."""
    cluster = Cluster(min_insync_replicas=1)
    cluster.start(1, report(0, 4, cut=True))
    cluster.fence(2)
    cluster.start(0, report(0, 5, cut=True))
    cluster.unfence(0)
    assert cluster.elect(0, recovery=True) == ""
    assert cluster.partition.isr == cluster.partition.commit_set == (0,)


# --- The schedules ---------------------------------------------------------------------------------------------------


def test_schedule_1_a_restarted_leader_never_leads_its_old_epoch() -> None:
    cluster = Cluster()
    before = cluster.partition
    cluster.restart(0, report(0, 0))
    assert cluster.partition.leader == NO_BROKER
    assert cluster.partition.isr == (0, 1, 2)
    assert cluster.elect(0) == ""
    after = cluster.partition
    assert after.leader_epoch >= before.leader_epoch + 1
    assert after.leader_incarnation > before.leader_incarnation


def test_schedule_3_below_the_minimum_the_commit_set_keeps_the_complete_replicas() -> None:
    """0 appends and fsyncs, 1 and 2 are fenced, 0 loses its batch: if it had committed alone, no replica would have
    it."""
    cluster = Cluster()
    cluster.fence(2, 1)
    assert cluster.partition.isr == (0,)
    assert len(cluster.partition.isr) < cluster.partition.min_insync_replicas
    cluster.restart(0, report(0, 3, cut=True))
    cluster.unfence(1)
    assert cluster.elect(0) == "not_eligible"
    assert cluster.elect(0, recovery=True) == "not_eligible"
    assert cluster.elect(1) == ""


def test_schedule_7_an_expansion_does_not_include_an_incarnation_that_the_leader_did_not_see() -> None:
    cluster = Cluster()
    cluster.fence(1)
    late = cluster.isr_proposal(0, 1, 2)
    # Fenced as it is, it is refused; and when it returns with a synced batch truncated, it is another incarnation.
    assert cluster.refusal(late) == "not_eligible"
    late = cluster.isr_proposal(0, 1, 2)
    cluster.restart(1, report(0, 0, cut=True))
    assert cluster.refusal(late) == "stale_incarnation"
    cluster.fence(0)
    assert cluster.elect(1) == "not_eligible"
    assert cluster.elect(2) == ""


def test_schedule_8_a_kept_member_is_named_by_its_current_incarnation_too() -> None:
    cluster = Cluster()
    late = cluster.isr_proposal(0, 1)
    cluster.restart(1, report(0, 5))
    assert cluster.partition.isr == (0, 1, 2)
    assert cluster.refusal(late) == "stale_incarnation"
    cluster.set_isr(0, 1)


def test_schedule_9_recovery_waits_for_the_minimum() -> None:
    cluster = Cluster()
    for broker in (0, 1, 2):
        cluster.fence(broker)
    cluster.restart(2, report(0, 3, cut=True))
    assert cluster.elect(2) == "not_eligible"
    assert cluster.elect(2, recovery=True) == "not_eligible"
    cluster.restart(1, report(0, 4, cut=True))
    assert cluster.elect(2, recovery=True) == "not_eligible"
    assert cluster.elect(1, recovery=True) == ""
    assert cluster.partition.isr == (1,)
    assert cluster.partition.not_eligible == (2,)


def test_schedule_10_a_truncated_replica_is_not_eligible_even_as_the_last_of_the_isr() -> None:
    cluster = Cluster()
    cluster.fence(1, 2)
    cluster.restart(0, report(0, 2, cut=True))
    assert cluster.partition.isr == (0,)
    assert cluster.partition.not_eligible == (0,)
    assert cluster.elect(0) == "not_eligible"
    # A later clean start does not restore the lost data.
    cluster.restart(0, report(0, 2))
    assert cluster.partition.not_eligible == (0,)
    assert cluster.elect(0) == "not_eligible"


def test_schedule_13_bytes_that_were_not_fsynced_do_not_count() -> None:
    """2 had x only in its page cache and reports so: its fsynced end is lower, and with `flush=os` it is truncated by
    rule."""
    cluster = Cluster()
    cluster.restart(2, report(0, 4, cut=True, clean=False))
    assert cluster.partition.isr == (0, 1)
    cluster.fence(0)
    assert cluster.elect(2) == "not_eligible"


def test_schedule_14_a_proposal_is_accepted_late_or_refused_for_good() -> None:
    """A leader that gives up waiting proves nothing: the entry may still come. It ends with a higher partition
    epoch."""
    cluster = Cluster()
    cluster.set_isr(0, 1)
    slow = cluster.isr_proposal(0, 1, 2)
    cluster.apply(ElectLeaders(()))
    before = cluster.partition.partition_epoch
    cluster.do(slow)
    assert cluster.partition.partition_epoch > before
    assert cluster.refusal(slow) == "stale_partition_epoch"
    slow = cluster.isr_proposal(0, 1)
    cluster.fence(2)
    assert cluster.refusal(slow) == "stale_partition_epoch"


def test_a_refused_expansion_is_not_accepted_when_a_copy_arrives_late() -> None:
    """0 proposes to add 1, twice since no answer came. 1 is fenced: the first copy is refused, and 0, once it knows,
    counts without 1. 1 is unfenced: if the second copy were accepted, 1 would be in the ISR without the records that 0
    committed."""
    cluster = Cluster()
    cluster.fence(1)
    copy = cluster.isr_proposal(0, 1, 2)
    assert cluster.refusal(copy) == "not_eligible"
    assert cluster.partition.partition_epoch > copy.partition_epoch
    cluster.unfence(1)
    assert cluster.refusal(copy) == "stale_partition_epoch"
    assert cluster.partition.isr == (0, 2)


def test_schedule_4a_the_rest_of_the_isr_does_not_hold_up_the_commit_set() -> None:
    """1 and 2 are fenced; 0, with an unsynced tail, loses power and truncates it; all return."""
    cluster = Cluster()
    cluster.fence(1, 2)
    cluster.restart(0, report(0, 5, cut=True))
    cluster.restart(1, report(0, 5))
    cluster.restart(2, report(0, 5))
    assert cluster.elect(0, recovery=True) == "not_eligible"
    # 1 was fenced first, and 0 and 2 could continue without it.
    assert cluster.partition.commit_set == (0, 2)
    assert cluster.elect(1) == "not_eligible"
    assert cluster.elect(2) == ""


def test_schedule_4b_a_live_eligible_member_is_not_outvoted_by_old_reports() -> None:
    """2 was never restarted: the report of its first start says nothing about its log."""
    cluster = Cluster()
    cluster.fence(1)
    cluster.fence(0)
    cluster.fence(2)
    cluster.restart(0, report(0, 5, cut=True))
    cluster.unfence(2)
    assert cluster.elect(0, recovery=True) == "not_eligible"
    assert cluster.elect(2) == ""


def test_schedule_4f_a_lost_directory_needs_an_operator() -> None:
    cluster = Cluster()
    cluster.set_isr(0, 2)
    for broker in (0, 1, 2):
        cluster.fence(broker)
    cluster.restart(2, disk=77)
    cluster.restart(0, report(0, 5, cut=True))
    cluster.restart(1, report(0, 5))
    for broker in (0, 1, 2):
        assert cluster.elect(broker) == "not_eligible"
        assert cluster.elect(broker, recovery=True) == "not_eligible"
    reason = cluster.view.explain_offline(TP)
    assert reason is not None
    assert "operator" in reason
    # With the old disk back in its place both directories are there.
    cluster.restart(2, report(0, 6), disk=2)
    assert cluster.elect(0, recovery=True) == "not_eligible"
    assert cluster.elect(2, recovery=True) == ""


# --- Recovery --------------------------------------------------------------------------------------------------------


def power_failure(cluster: Cluster, *ends: tuple[int, int]) -> None:
    for broker in range(len(ends)):
        cluster.fence(broker)
    for broker, (epoch, end) in enumerate(ends):
        cluster.restart(broker, report(epoch, end, cut=True))


@pytest.mark.parametrize(
    ("ends", "winners"),
    [
        (((1, 5), (1, 6), (1, 4)), {1}),
        (((2, 3), (1, 6), (1, 4)), {0}),
        (((1, 5), (1, 5), (1, 4)), {0, 1}),
        (((-1, 0), (-1, 0), (-1, 0)), {0, 1, 2}),
    ],
)
def test_recovery_is_won_by_the_greatest_epoch_then_end(ends: tuple[tuple[int, int], ...], winners: set[int]) -> None:
    for candidate in range(3):
        cluster = Cluster()
        power_failure(cluster, *ends)
        assert (cluster.elect(candidate, recovery=True) == "") == (candidate in winners)


def test_the_winner_is_eligible_and_alone_and_the_commit_set_stays() -> None:
    cluster = Cluster()
    cluster.fence(0)
    cluster.elect(1)
    power_failure(cluster, (0, 5), (1, 6), (1, 7))
    assert (cluster.partition.isr, cluster.partition.commit_set) == ((2,), (1, 2))
    assert cluster.elect(2, recovery=True) == ""
    record = cluster.partition
    assert (record.isr, record.commit_set, record.not_eligible) == ((2,), (1, 2), (1,))


def test_an_absent_eligible_member_does_not_block_recovery_but_its_return_does() -> None:
    cluster = Cluster()
    for broker in (0, 1, 2):
        cluster.fence(broker)
    cluster.restart(1, report(0, 4, cut=True))
    cluster.restart(2, report(0, 5, cut=True))
    returned = Cluster()
    returned.fence(0, 1, 2)
    returned.restart(1, report(0, 4, cut=True))
    returned.restart(2, report(0, 5, cut=True))
    returned.unfence(0)
    assert cluster.elect(2, recovery=True) == ""
    assert returned.elect(2, recovery=True) == "not_eligible"
    assert returned.elect(0) == ""


def test_only_the_report_of_the_current_incarnation_counts() -> None:
    cluster = Cluster()
    power_failure(cluster, (1, 5), (1, 9), (1, 4))
    cluster.restart(1, report(1, 2))
    assert cluster.elect(1, recovery=True) == "not_eligible"
    assert cluster.elect(0, recovery=True) == ""


def test_a_replica_that_was_never_created_takes_part_with_an_empty_log() -> None:
    """A topic is created and all nodes lose power before a folder was created: nothing was lost, and it continues."""
    cluster = Cluster()
    cluster.fence(0, 1, 2)
    for broker in range(3):
        cluster.do(cluster.registration(broker, ()))
        cluster.unfence(broker)
    assert cluster.partition.not_eligible == (0, 1, 2)
    assert cluster.elect(0) == "not_eligible"
    assert cluster.elect(0, recovery=True) == ""


def test_an_added_replica_is_eligible_again() -> None:
    cluster = Cluster()
    cluster.fence(2)
    cluster.restart(1, report(0, 4, cut=True))
    assert (cluster.partition.isr, cluster.partition.commit_set) == ((0,), (0, 1))
    assert cluster.partition.not_eligible == (1,)
    cluster.set_isr(0, 1)
    assert cluster.partition.not_eligible == ()
    cluster.fence(0)
    assert cluster.elect(1) == ""


def raised_while_in_use(feature_level: int) -> Cluster:
    """Two replicas of three were in sync when the minimum was raised from two to three; then all lost power."""
    cluster = Cluster(feature_level=feature_level)
    cluster.do(SetFeatureLevel(feature_level))
    cluster.fence(2)
    cluster.do(AlterTopic(TOPIC, (("min.insync.replicas", "3"),)))
    cluster.fence(0, 1)
    for broker, end in enumerate((5, 6)):
        cluster.restart(broker, report(1, end, cut=True))
    assert (cluster.partition.commit_set, cluster.partition.min_insync_replicas) == ((0, 1), 3)
    return cluster


def test_a_minimum_above_the_commit_set_does_not_block_recovery_s10() -> None:
    """Nothing was acknowledged under the minimum of three, and the two replicas that had acknowledged are both here:
    waiting for a third member would take forever (S10). One of the two may be the one that lost data (S1)."""
    cluster = raised_while_in_use(RAISED_MINIMUM_FEATURE_LEVEL)
    cluster.fence(0)
    assert cluster.elect(1, recovery=True) == "not_eligible", "one of the two alone may lack records"
    reason = cluster.view.explain_offline(TP)
    assert reason is not None and "2 of its members with their directories (1 now)" in reason
    cluster.unfence(0)
    assert cluster.view.explain_offline(TP) == "an election is under way"
    assert cluster.elect(0, recovery=True) == "not_eligible", "the other one has more"
    assert cluster.elect(1, recovery=True) == ""


def test_a_lowered_minimum_requires_only_its_number_of_members() -> None:
    cluster = raised_while_in_use(RAISED_MINIMUM_FEATURE_LEVEL)
    cluster.do(AlterTopic(TOPIC, (("min.insync.replicas", "1"),)))
    cluster.fence(0)
    assert cluster.elect(1, recovery=True) == ""


def test_below_its_feature_level_recovery_requires_the_configured_minimum() -> None:
    """Nodes of two versions must not decide one election differently (S7)."""
    cluster = raised_while_in_use(RAISED_MINIMUM_FEATURE_LEVEL - 1)
    assert cluster.elect(1, recovery=True) == "not_eligible"
    reason = cluster.view.explain_offline(TP)
    assert reason is not None and "can only be decided by an operator" in reason


# --- Missing members -------------------------------------------------------------------------------------------------


def test_the_status_names_what_is_missing() -> None:
    cluster = Cluster()
    assert cluster.view.explain_offline(TP) is None
    cluster.fence(1, 2, 0)
    reason = cluster.view.explain_offline(TP)
    assert reason is not None
    assert "broker 0 or 2 to come back" in reason
    cluster.restart(0, report(3, 5, cut=True))
    reason = cluster.view.explain_offline(TP)
    assert reason is not None
    assert "2 of its members with their directories (1 now)" in reason
    assert "0 is here and may lack records (epoch 3 up to 5)" in reason


def test_an_election_in_progress_is_no_loss() -> None:
    cluster = Cluster()
    cluster.fence(0)
    assert cluster.view.explain_offline(TP) == "an election is under way"
    assert cluster.view.explain_offline(TopicPartition(TOPIC, 9)) is None
