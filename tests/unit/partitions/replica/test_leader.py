"""The leader core: its appends, acknowledgements and reads, and the members that it counts."""

from __future__ import annotations

import pytest

from partitions.replica import effects as fx
from partitions.replica.produces import UnreplicatedProduces
from raftlog.config import MAX_UNREPLICATED_BYTES
from raftlog.errors import Applied, LogEndMoved, RemoteProtocolError
from raftlog.model import FIRST_KEYED_ID, Acks, BrokerId, LeaderEpoch, Offset
from tests.support.partitions.replication_cores import CoreDriver, FakeLog, broker, isr_of, record


def leading(log: FakeLog | None = None, *, matched: bool = True, **fields: object) -> CoreDriver:
    """Broker 0 leads epoch 1 with followers 1 and 2, matched unless stated otherwise."""
    core = CoreDriver(log)
    core.lead(**fields)
    if matched:
        end = core.log.log_end_offset
        for follower in (1, 2):
            core.subscribe(follower, last_epoch=core.log.epochs.latest_epoch, end=end)
    return core


def test_acks_all_waits_for_every_in_sync_replica_and_for_the_leaders_own_fsync() -> None:
    core = leading()
    assert [type(e) for e in core.produce(3)] == [fx.Append]
    core.report(1, 3)
    core.report(2, 3)
    assert core.acknowledged() == []
    assert core.fsync() == [
        fx.AdvanceHighWatermark(Offset(3), exposed=True),
        fx.Acknowledge(fx.RequestId(1), Offset(0)),
    ]


def test_a_batch_that_must_get_another_offset_is_refused_with_the_present_end() -> None:
    """Compare and append: decided when the batch's turn has come, behind every batch that arrived before."""
    core = leading()
    core.produce(3)
    assert [type(e) for e in core.produce(2, expected_end_offset=3)] == [fx.Append]
    (refused,) = core.produce(expected_end_offset=3)
    assert isinstance(refused, fx.Reject) and isinstance(refused.error, LogEndMoved)
    assert refused.error.log_end_offset == core.log.log_end_offset == 5
    assert refused.error.applied is Applied.NO
    assert [type(e) for e in core.produce(expected_end_offset=5)] == [fx.Append]


def test_a_retry_of_a_conditional_append_gets_its_offset_not_a_refusal_s1() -> None:
    core = leading()
    key = (FIRST_KEYED_ID + 7, 0, 1234)
    assert [type(e) for e in core.produce(2, producer=key, expected_end_offset=0)] == [fx.Append]
    core.produce(producer=key, expected_end_offset=0)
    core.fsync()
    core.report(1, 2)
    core.report(2, 2)
    assert core.rejected() == [(2, "idempotency_key_reused")], "it has another number of records"
    core.produce(2, producer=key, expected_end_offset=0)
    assert core.acknowledged() == [(1, 0), (3, 0)]
    assert core.log.log_end_offset == 2


def test_acks_one_is_sent_with_the_write_and_completes_at_the_leaders_fsync() -> None:
    core = leading()
    (append,) = core.produce(acks=Acks.LEADER)
    assert isinstance(append, fx.Append)
    assert append.after == (fx.Acknowledge(fx.RequestId(1), Offset(0)),)
    assert core.acknowledged() == []
    core.fsync()
    assert core.acknowledged() == [(1, 0)]


def test_acks_none_is_answered_when_it_is_appended() -> None:
    core = leading()
    assert [type(e) for e in core.produce(acks=Acks.NONE)] == [fx.Append, fx.Acknowledge]


def test_a_fetch_offset_guarantees_nothing() -> None:
    core = leading()
    core.produce(2)
    core.fsync()
    core.report(1, 0, fetch=2)
    core.report(2, 0, fetch=2)
    assert core.leader.high_watermark == 0
    core.report(1, 2)
    core.report(2, 2)
    assert core.leader.high_watermark == 2


def test_the_high_watermark_stands_still_below_min_insync_replicas() -> None:
    core = leading(isr=(0,), minimum=2)
    core.produce(acks=Acks.LEADER)
    core.fsync()
    assert core.leader.high_watermark == 0
    assert core.produce(acks=Acks.ALL)[0].error.code == "not_enough_replicas"
    assert core.rejected() == [(2, "not_enough_replicas")]


def test_a_shrink_below_the_minimum_answers_waiting_requests_as_unknown() -> None:
    core = leading()
    core.produce()
    core.fsync()
    core.do(core.replica.on_record(record(isr=(0,), partition_epoch=2), 0.0))
    (reject,) = [e for e in core.out if isinstance(e, fx.Reject)]
    assert reject.error.code == "not_enough_replicas_after_append"
    assert reject.error.applied is Applied.UNKNOWN


def test_lost_leadership_leaves_outcomes_unknown_but_a_parked_batch_was_certainly_not_applied() -> None:
    core = leading()
    core.produce()
    core.produce(producer=(7, 0, 5))
    core.do(core.replica.on_record(record(leader=1, epoch=2, partition_epoch=2), 0.0))
    assert core.rejected() == [(1, "leadership_lost"), (2, "not_leader")]
    assert [e.error.applied for e in core.out if isinstance(e, fx.Reject)] == [Applied.UNKNOWN, Applied.NO]
    assert fx.DropFollowers("not_leader") in core.out


def test_a_new_leader_hides_everything_until_its_epochs_start_is_committed() -> None:
    core = leading(FakeLog.of((1, 5), start=0), epoch=2, matched=False)
    assert core.leader.epoch_start_offset == 5
    assert core.leader.exposed_high_watermark is None
    core.subscribe(1, last_epoch=1, end=5, stable=3)
    effects = core.subscribe(2, last_epoch=1, end=5)
    assert fx.AdvanceHighWatermark(Offset(3), exposed=False) in effects
    assert core.leader.exposed_high_watermark is None
    core.report(1, 5)
    assert core.leader.exposed_high_watermark == 5  # with nothing of its own to append


def test_a_follower_that_is_not_matched_holds_the_high_watermark() -> None:
    core = leading(matched=False)
    core.produce()
    core.fsync()
    core.subscribe(1)
    core.report(1, 1)
    assert core.leader.high_watermark == 0
    core.subscribe(2)
    core.report(2, 1)
    assert core.leader.high_watermark == 1


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"epoch": 0}, "fenced_leader_epoch"),
        ({"epoch": 2}, "unknown_leader_epoch"),
        ({"incarnation": 2}, "stale_incarnation"),
        ({"follower": 9}, "unknown_partition"),
    ],
)
def test_a_subscription_that_is_not_exactly_current_is_refused(fields: dict[str, int], code: str) -> None:
    core = leading(matched=False)
    core.subscribe(**{"follower": 1, **fields})
    assert core.last_answer() == fx.Refused(code)


@pytest.mark.parametrize("fields", [{"epoch": 0}, {"incarnation": 2}, {"incarnation": 0}])
def test_stale_acknowledgements_count_for_nothing(fields: dict[str, int]) -> None:
    core = leading()
    core.produce()
    core.fsync()
    core.report(2, 1)
    assert core.report(1, 1, **fields) == []
    assert core.leader.high_watermark == 0


def test_a_new_incarnation_is_another_follower() -> None:
    core = leading()
    core.produce()
    core.fsync()
    core.brokers[BrokerId(1)] = broker(1, 2)
    core.do(core.replica.on_broker(BrokerId(1), 0.0))
    core.report(2, 1)
    core.report(1, 1, incarnation=1)
    core.report(1, 1, incarnation=2)
    assert core.leader.high_watermark == 0, "it has not matched its log in this incarnation"
    core.subscribe(1, last_epoch=1, end=1, incarnation=2)
    assert core.leader.high_watermark == 1


def test_impossible_numbers_are_the_peers_error() -> None:
    core = leading()
    core.produce(2)
    with pytest.raises(RemoteProtocolError):
        core.report(1, 3)
    with pytest.raises(RemoteProtocolError):
        core.report(1, 2, fetch=1)
    core.report(1, 2)
    with pytest.raises(RemoteProtocolError):
        core.report(1, 1)


# --- ISR ---


def test_the_removal_of_a_fenced_broker_is_proposed_at_once() -> None:
    core = leading()
    core.brokers[BrokerId(2)] = broker(2, fenced=True)
    (propose,) = core.do(core.replica.on_broker(BrokerId(2), 0.0))
    assert isinstance(propose, fx.ProposeIsr)
    assert isr_of(propose) == [0, 1]
    assert core.leader.maximal_isr == (0, 1, 2), "until it is accepted it counts"


def test_the_removal_of_a_lagging_member_is_proposed_after_its_time_and_an_idle_partition_has_none() -> None:
    core = leading()
    assert core.tick(100.0) == []
    core.produce()
    core.fsync()
    core.report(1, 1)
    assert core.tick(5.0) == []
    (propose,) = core.tick(0.1)
    assert isinstance(propose, fx.ProposeIsr)
    assert isr_of(propose) == [0, 1]


def test_under_steady_load_a_follower_that_keeps_pace_does_not_lag() -> None:
    core = leading()
    for n in range(1, 40):
        core.produce()
        core.fsync()
        core.report(1, n)
        core.report(2, n - 1)  # always one behind
        assert core.tick(0.5) == []


@pytest.mark.parametrize("behind", [2, 3, 10])
def test_nor_one_whose_acknowledgements_overlap(behind: int) -> None:
    """Pushes and fsync rounds overlap, so the next report lacks the batches that were the last ones at the previous
    report."""
    core = leading()
    for n in range(1, 300):
        core.produce()
        core.fsync()
        core.report(1, n)
        core.report(2, max(n - behind, 0))
        assert core.tick(0.1) == []


def test_a_follower_that_only_ever_falls_back_lags() -> None:
    core = leading()
    proposals = []
    for n in range(1, 150):
        core.produce()
        core.fsync()
        core.report(1, n)
        core.report(2, n // 3)
        proposals += core.tick(0.1)
    assert [isr_of(proposal) for proposal in proposals] == [[0, 1]]


def test_the_high_watermark_counts_the_maximal_isr_until_a_higher_partition_epoch() -> None:
    core = leading()
    core.brokers[BrokerId(2)] = broker(2, fenced=True)
    core.do(core.replica.on_broker(BrokerId(2), 0.0))
    core.produce()
    core.fsync()
    core.report(1, 1)
    assert core.leader.high_watermark == 0
    core.do(core.replica.on_isr_answer(LeaderEpoch(1), 1, fx.Fate.ACCEPTED, 0.0))
    assert core.leader.high_watermark == 0, "the answer is not the record"
    core.do(core.replica.on_record(record(isr=(0, 1), partition_epoch=2), 0.0))
    assert core.leader.high_watermark == 1
    assert core.acknowledged() == [(1, 0)]


def test_a_returning_replica_joins_with_the_high_watermark_and_the_epochs_start_stable() -> None:
    core = leading(FakeLog.of((1, 4)), epoch=2, isr=(0, 1), matched=False)
    core.subscribe(1, last_epoch=1, end=4)
    assert core.leader.high_watermark == 4
    core.subscribe(2, last_epoch=1, end=4, stable=3)
    assert core.proposals() == []
    (propose,) = core.report(2, 4)
    assert isinstance(propose, fx.ProposeIsr)
    assert isr_of(propose) == [0, 1, 2]


def test_the_epochs_start_counts_even_if_the_high_watermark_is_stale() -> None:
    """Otherwise a replica without a committed record could join and be elected (schedule 4b)."""
    core = leading(FakeLog.of((1, 1)), epoch=2, isr=(0, 1), matched=False)
    assert core.leader.high_watermark == 0
    core.subscribe(2, last_epoch=-1, end=0)
    assert core.proposals() == []
    core.report(2, 1)
    assert [isr_of(p) for p in core.proposals()] == [[0, 1, 2]]


def test_one_proposal_at_a_time_and_none_is_dropped_because_of_time() -> None:
    core = leading(isr=(0, 1))
    (propose,) = core.proposals()
    assert isr_of(propose) == [0, 1, 2]
    assert core.tick(100.0) == [], "the first is still under way"
    core.do(core.replica.on_isr_answer(LeaderEpoch(1), propose.attempt, fx.Fate.UNKNOWN, core.now))
    core.produce()
    core.fsync()
    core.report(1, 1)
    assert core.leader.high_watermark == 0, "broker 2 may be in the ISR by now"
    (again,) = core.tick(0.3)
    assert isinstance(again, fx.ProposeIsr)
    core.do(core.replica.on_isr_answer(LeaderEpoch(1), again.attempt, fx.Fate.REFUSED, core.now))
    assert core.leader.maximal_isr == (0, 1, 2), "the first attempt may still be accepted"
    core.do(core.replica.on_record(record(isr=(0, 1), partition_epoch=2), core.now))
    assert core.leader.high_watermark == 1


def test_a_definite_refusal_ends_a_proposal() -> None:
    core = leading(isr=(0, 1))
    core.produce()
    core.fsync()
    core.report(1, 1)
    assert core.leader.high_watermark == 0
    core.do(core.replica.on_isr_answer(LeaderEpoch(1), 1, fx.Fate.REFUSED, core.now))
    assert core.leader.maximal_isr == (0, 1)
    assert core.leader.high_watermark == 1, "at once: nothing else may happen for long"
    assert core.acknowledged() == [(1, 0)]


def test_an_unknown_outcome_is_settled_by_proposing_the_currently_wanted_isr() -> None:
    core = leading(isr=(0, 1))
    core.do(core.replica.on_isr_answer(LeaderEpoch(1), 1, fx.Fate.UNKNOWN, core.now))
    core.brokers[BrokerId(2)] = broker(2, fenced=True)
    core.do(core.replica.on_broker(BrokerId(2), core.now))
    (again,) = core.tick(0.3)
    assert isinstance(again, fx.ProposeIsr)
    assert isr_of(again) == [0, 1], "the ISR as it is: accepted or not, nothing older can be accepted after it"


def test_a_new_member_has_time_to_catch_up() -> None:
    """It has the committed records, not those that arrived meanwhile: its old lag does not remove it again at once."""
    core = leading(isr=(0, 1), matched=False)
    core.subscribe(1)
    core.tick(60.0)
    for _ in range(2):
        core.produce()
    core.fsync()
    core.report(1, 1)
    (propose,) = [e for e in core.subscribe(2, last_epoch=1, end=1) if isinstance(e, fx.ProposeIsr)]
    assert isr_of(propose) == [0, 1, 2]
    core.do(core.replica.on_record(record(isr=(0, 1, 2), partition_epoch=2), core.now))
    assert core.tick(4.9) == []
    assert [isr_of(e) for e in core.tick(0.2) if isinstance(e, fx.ProposeIsr)] == [[0]]


# --- Bounds ---


def test_unreplicated_bytes_are_bounded_for_any_acks() -> None:
    core = leading()
    size = MAX_UNREPLICATED_BYTES // 4
    for acks in (Acks.NONE, Acks.LEADER, Acks.ALL, Acks.ALL):
        core.produce(acks=acks, size=size)
    assert core.rejected() == []
    core.produce(acks=Acks.NONE, size=size)
    assert core.rejected() == [(5, "overloaded")]
    core.fsync()
    core.report(1, 4)
    core.report(2, 4)
    core.produce(size=size)
    assert core.rejected() == [(5, "overloaded")]


def test_an_empty_queue_takes_a_batch_of_any_size() -> None:
    produces = UnreplicatedProduces(bytes_max=10)
    assert produces.has_room(1000)
    produces.appended(Offset(1), 1000)
    assert not produces.has_room(1)


# --- Idempotence ---


def test_a_resend_gets_its_first_offset_and_no_weaker_promise() -> None:
    core = leading()
    core.produce(2, producer=(7, 0, 0))
    core.produce(2, producer=(7, 0, 0))
    core.produce(2, producer=(7, 0, 0), acks=Acks.LEADER)
    assert core.log.log_end_offset == 2
    assert core.acknowledged() == []
    core.fsync()
    assert core.acknowledged() == [(3, 0)]
    core.report(1, 2)
    core.report(2, 2)
    assert core.acknowledged() == [(3, 0), (1, 0), (2, 0)]


def test_waiting_resends_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partitions.replica.produces.MAX_WAITING", 3)
    core = leading()
    for _ in range(5):
        core.produce(producer=(7, 0, 0))
    assert core.rejected() == [(4, "outcome_unknown"), (5, "outcome_unknown")]
    core.fsync()
    core.report(1, 1)
    core.report(2, 1)
    assert core.acknowledged() == [(1, 0), (2, 0), (3, 0)]


def test_a_resend_below_the_high_watermark_is_acknowledged_even_below_the_minimum() -> None:
    core = leading()
    core.produce(producer=(7, 0, 0))
    core.fsync()
    core.report(1, 1)
    core.report(2, 1)
    core.produce(producer=(7, 0, 1))
    core.do(core.replica.on_record(record(isr=(0,), partition_epoch=2), 0.0))
    core.produce(producer=(7, 0, 0))
    core.produce(producer=(7, 0, 1))
    assert core.acknowledged() == [(1, 0), (3, 0)]
    assert core.rejected() == [(2, "not_enough_replicas_after_append"), (4, "not_enough_replicas_after_append")]


def test_batches_that_overtook_one_another_are_appended_in_turn() -> None:
    core = leading()
    for sequence in (3, 1, 2, 4):
        assert core.produce(producer=(7, 0, sequence)) == []
    core.produce(producer=(7, 0, 0))
    appended = [e.batch.header.base_sequence for e in core.out if isinstance(e, fx.Append)]
    assert appended == [0, 1, 2, 3, 4]
    assert core.rejected() == []


def test_a_parked_resend_does_not_hide_the_batch_behind_it() -> None:
    core = leading()
    core.produce(producer=(7, 0, 1))
    core.produce(producer=(7, 0, 1))
    core.produce(producer=(7, 0, 2))
    core.produce(producer=(7, 0, 0))
    assert core.log.log_end_offset == 3
    core.fsync()
    core.report(1, 3)
    core.report(2, 3)
    assert sorted(core.acknowledged()) == [(1, 1), (2, 1), (3, 2), (4, 0)]


def test_a_batch_that_is_missing_for_too_long_refuses_those_that_wait_for_it() -> None:
    core = leading()
    core.produce(producer=(7, 0, 0))
    core.produce(producer=(7, 0, 2))
    core.produce(producer=(8, 0, 1))
    assert core.tick(0.9) == []
    assert not core.leader.quiet
    core.tick(0.2)
    assert core.rejected() == [(2, "out_of_order_sequence"), (3, "unknown_producer_id")]


def test_a_sixth_parked_batch_is_refused_at_once() -> None:
    core = leading()
    for sequence in range(1, 6):
        core.produce(producer=(7, 0, sequence))
    assert core.rejected() == []
    core.produce(producer=(7, 0, 6))
    assert core.rejected() == [(6, "unknown_producer_id")]


def test_an_older_epoch_of_a_producer_is_fenced() -> None:
    core = leading()
    core.produce(producer=(7, 1, 0))
    core.produce(producer=(7, 0, 1))
    assert core.rejected() == [(2, "producer_fenced")]


def test_the_status_text_of_a_leader() -> None:
    core = leading(isr=(0, 1), matched=False)
    core.produce(4)
    core.subscribe(1)
    assert str(core.leader) == "leader epoch=1 leo=4 stable=0 hw=0 isr=0,1 lag 1:4 2:?"
