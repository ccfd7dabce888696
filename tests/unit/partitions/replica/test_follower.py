"""The follower core and the roles of a replica."""

from __future__ import annotations

import pytest

from partitions.replica import effects as fx
from partitions.replica.follower import Follower, State
from partitions.replica.log_view import compare_follower, truncation_for
from raftlog.errors import Contradiction, InvariantViolation, RemoteProtocolError
from raftlog.model import NO_BROKER, NO_EPOCH, BrokerId, LeaderEpoch, Offset
from tests.support.partitions.replication_cores import CoreDriver, FakeLog, header, record

EPOCH = LeaderEpoch(2)


def following(log: FakeLog | None = None, **fields: object) -> CoreDriver:
    """Broker 1 follows broker 0 in epoch 2."""
    core = CoreDriver(log, node=1)
    core.lead(**{"epoch": 2, **fields})
    return core


def streaming(log: FakeLog | None = None, *, high_watermark: int = 0, log_start: int = 0) -> CoreDriver:
    core = following(log)
    follower = core.replica.follower
    assert follower is not None
    core.do(follower.on_link_opened(core.now))
    core.do(follower.on_answer(EPOCH, fx.Matched(Offset(high_watermark), Offset(log_start)), core.now))
    return core


def answer(core: CoreDriver, what: fx.Answer, epoch: int = 2) -> list[fx.Effect]:
    assert core.replica.follower is not None
    return core.do(core.replica.follower.on_answer(LeaderEpoch(epoch), what, core.now))


def push(core: CoreDriver, *batches: tuple[int, int, int], marks: tuple[int, int] = (0, 0)) -> list[fx.Effect]:
    """Each batch is (base offset, records, epoch)."""
    assert core.replica.follower is not None
    fetched = [
        fx.FetchedBatch(header(count, base_offset=base, leader_epoch=epoch), b"") for base, count, epoch in batches
    ]
    return core.do(core.replica.follower.on_pushed(EPOCH, fetched, fx.Matched(Offset(marks[0]), Offset(marks[1]))))


def test_it_subscribes_with_epoch_and_end_of_its_log_and_its_stable_end() -> None:
    core = following(FakeLog.of((1, 7), stable=5))
    assert core.replica.follower is not None
    (subscribe,) = core.do(core.replica.follower.on_link_opened(0.0))
    assert isinstance(subscribe, fx.Subscribe)
    assert (subscribe.last_epoch, subscribe.fetch_offset, subscribe.stable_end_offset) == (1, 7, 5)


def test_it_appends_batches_that_continue_its_log_and_reports_only_stable_ones() -> None:
    core = streaming()
    (append,) = push(core, (0, 2, 2), (2, 1, 2))
    assert isinstance(append, fx.AppendFetched)
    assert core.replica.on_stable() == []
    assert core.fsync() == [fx.ReportStable(EPOCH, Offset(3), Offset(3))]
    assert core.replica.on_stable() == [], "once"


def test_an_fsync_that_ends_before_the_match_is_reported_after_it() -> None:
    core = following(FakeLog.of((1, 7), stable=5))
    follower = core.replica.follower
    assert follower is not None
    core.do(follower.on_link_opened(0.0))
    assert core.fsync() == []
    assert answer(core, fx.Matched(Offset(0), Offset(0))) == [fx.ReportStable(EPOCH, Offset(7), Offset(7))]


@pytest.mark.parametrize("batch", [(1, 1, 2), (0, 1, 3), (0, 1, 0)])
def test_a_batch_that_does_not_fit_is_the_leaders_error_and_nothing_is_appended(batch: tuple[int, int, int]) -> None:
    core = streaming(FakeLog.of((1, 4)))
    end = core.log.log_end_offset
    bad = (end + batch[0], batch[1], batch[2])
    with pytest.raises(RemoteProtocolError):
        push(core, (end, 1, 2), (bad[0] + 1, bad[1], bad[2]))
    assert core.log.log_end_offset == end


def test_its_high_watermark_is_the_leaders_limited_by_its_log() -> None:
    core = streaming()
    assert push(core, (0, 2, 2), marks=(9, 0))[1] == fx.AdvanceHighWatermark(Offset(2), exposed=False)
    assert push(core, marks=(1, 0)) == []
    assert core.replica.high_watermark == 2


def test_the_leaders_log_start_is_followed() -> None:
    core = streaming(FakeLog.of((1, 8)))
    push(core, marks=(8, 5))
    assert core.log.log_start_offset == 5


def test_it_truncates_by_epoch_and_subscribes_again() -> None:
    core = following(FakeLog.of((1, 4), (2, 9)), epoch=3)
    follower = core.replica.follower
    assert follower is not None
    core.do(follower.on_link_opened(0.0))
    truncate, again = answer(core, fx.Diverged(LeaderEpoch(2), Offset(6)), epoch=3)
    assert truncate == fx.TruncateTo(LeaderEpoch(3), Offset(6))
    assert isinstance(again, fx.Subscribe)
    assert (again.last_epoch, again.fetch_offset, again.stable_end_offset) == (2, 6, 6)


def test_it_never_truncates_to_the_high_watermark() -> None:
    """A restarted follower knows no high watermark; its log stays until its leader's epochs contradict it."""
    core = following(FakeLog.of((1, 4)))
    assert core.replica.high_watermark == 0
    assert core.log.log_end_offset == 4


def test_a_member_of_the_isr_refuses_to_drop_committed_records() -> None:
    core = streaming(FakeLog.of((1, 4)), high_watermark=3)
    assert core.replica.follower is not None
    core.do(core.replica.follower.on_link_lost())
    core.do(core.replica.follower.on_link_opened(0.0))
    with pytest.raises(Contradiction, match="S6"):
        answer(core, fx.Diverged(LeaderEpoch(1), Offset(2)))
    assert core.log.log_end_offset == 4
    follower = core.replica.follower
    assert not core.replica.offline and follower.state is State.WAITING, "it asks again, and later each time"
    core.do(follower.on_link_lost())
    assert core.do(follower.on_link_opened(0.1)) == []
    (again,) = core.do(follower.on_tick(60.0))
    assert isinstance(again, fx.Subscribe)


def test_outside_the_isr_even_a_copy_of_a_committed_record_may_be_dropped() -> None:
    core = CoreDriver(FakeLog.of((1, 4)), node=1)
    core.lead(epoch=2, isr=(0,), commit_set=(0,), minimum=1)
    follower = core.replica.follower
    assert follower is not None
    core.do(follower.on_link_opened(0.0))
    answer(core, fx.Matched(Offset(3), Offset(0)))
    core.do(follower.on_link_lost())
    core.do(follower.on_link_opened(0.0))
    answer(core, fx.Diverged(LeaderEpoch(1), Offset(2)))
    assert core.log.log_end_offset == 2
    assert core.replica.high_watermark == 2


def test_below_the_leaders_start_it_starts_again_there() -> None:
    core = following(FakeLog.of((1, 4)))
    follower = core.replica.follower
    assert follower is not None
    core.do(follower.on_link_opened(0.0))
    restart, again = answer(core, fx.StartAt(Offset(50)))
    assert restart == fx.StartLogAt(EPOCH, Offset(50))
    assert isinstance(again, fx.Subscribe)
    assert (again.last_epoch, again.fetch_offset, again.stable_end_offset) == (-1, 50, 50)
    assert core.replica.high_watermark == 50


def test_a_log_that_starts_again_below_its_former_start_does_not_claim_to_begin_beyond_its_end() -> None:
    """Until the new start is written, the disk has the former one. The leader refuses a start beyond the end."""
    core = following(FakeLog.of((1, 4)))
    core.log.stable_start_offset = Offset(9)
    assert core.replica.follower is not None
    (subscribe,) = core.do(core.replica.follower.on_link_opened(0.0))
    assert isinstance(subscribe, fx.Subscribe)
    assert (subscribe.fetch_offset, subscribe.stable_start_offset) == (4, 4)


def test_a_leader_that_contradicts_itself_is_not_believed() -> None:
    core = streaming(FakeLog.of((1, 4)))
    with pytest.raises(RemoteProtocolError):
        answer(core, fx.Diverged(LeaderEpoch(1), Offset(2)))
    with pytest.raises(RemoteProtocolError):
        answer(core, fx.Matched(Offset(0), Offset(0)))
    with pytest.raises(RemoteProtocolError):
        truncation_for(FakeLog.of((1, 4)), fx.Diverged(LeaderEpoch(1), Offset(4)))


def test_a_refusal_is_retried_later_and_damage_with_growing_pauses() -> None:
    core = streaming()
    follower = core.replica.follower
    assert follower is not None
    answer(core, fx.Refused("not_leader"))
    assert not follower.quiet
    assert core.tick(0.4) == []
    assert [type(e) for e in core.tick(0.2)] == [fx.Subscribe]
    waits = []
    for _ in range(12):
        core.do(follower.on_corrupt_push(core.now))
        core.do(follower.on_link_lost())
        assert core.do(follower.on_link_opened(core.now)) == [], "the other partitions of the link go on without it"
        since = core.now
        while not core.tick(0.05):
            pass
        waits.append(round(core.now - since, 1))
    assert waits == sorted(waits)
    assert waits[0] < 2 < waits[5]
    assert 29 < waits[-1] < 31


def test_after_a_full_disk_it_fetches_from_its_current_end() -> None:
    core = streaming(FakeLog.of((1, 4)))
    follower = core.replica.follower
    assert follower is not None
    assert core.do(follower.on_disk_full(core.now)) == [fx.Unsubscribe(BrokerId(0), EPOCH)]
    (subscribe,) = core.tick(1.0)
    assert isinstance(subscribe, fx.Subscribe)
    assert subscribe.fetch_offset == 4


# --- Roles ---


def test_it_leads_only_in_the_incarnation_that_the_record_names() -> None:
    core = CoreDriver(node=0)
    core.lead(incarnation=2)
    assert core.replica.leader is None
    assert core.replica.follower is None
    core.produce()
    assert core.rejected() == [(1, "leader_not_available")]
    core.lead(incarnation=1, epoch=2, partition_epoch=2)
    assert core.leader.leader_epoch == 2


def test_without_a_leader_it_is_idle() -> None:
    core = CoreDriver(node=1)
    core.lead(leader=NO_BROKER, epoch=2)
    assert str(core.replica) == "idle epoch=2 leo=0 stable=0"


def test_older_records_change_nothing_and_epochs_never_fall() -> None:
    core = CoreDriver()
    core.lead(epoch=5, partition_epoch=9)
    leader = core.leader
    core.lead(leader=1, epoch=4, partition_epoch=8)
    assert core.leader is leader
    with pytest.raises(InvariantViolation, match="fell"):
        core.lead(leader=1, epoch=4, partition_epoch=10)


def test_a_leader_elected_with_a_log_of_a_later_epoch_violates_an_invariant() -> None:
    core = CoreDriver(FakeLog.of((7, 3)))
    with pytest.raises(InvariantViolation, match="elected"):
        core.lead(epoch=6)


def test_the_high_watermark_is_kept_across_roles() -> None:
    core = streaming(FakeLog.of((1, 4)), high_watermark=3)
    core.lead(leader=1, epoch=3, partition_epoch=2)
    assert core.leader.high_watermark == 3
    assert core.leader.exposed_high_watermark is None
    core.lead(leader=0, epoch=4, partition_epoch=3)
    assert core.replica.high_watermark == 3


def test_offline_is_permanent() -> None:
    core = CoreDriver()
    core.lead()
    core.produce()
    effects = core.do(core.replica.go_offline("disk_failed: fsync"))
    assert fx.DropFollowers("replica_not_available") in effects
    assert core.rejected() == [(1, "leadership_lost")]
    core.lead(epoch=2, partition_epoch=2)
    assert core.replica.leader is None
    core.produce()
    assert core.rejected()[-1] == (2, "replica_not_available")
    assert str(core.replica) == "offline epoch=2 disk_failed: fsync"
    core.subscribe(1)
    assert core.last_answer() == fx.Refused("replica_not_available")


def test_it_stops_following_before_it_leads() -> None:
    core = streaming()
    effects = core.lead(leader=1, epoch=3, partition_epoch=2)
    assert effects[0] == fx.Unsubscribe(BrokerId(0), EPOCH)
    assert core.replica.follower is None


def test_a_push_of_another_epoch_is_not_appended() -> None:
    core = streaming()
    assert core.replica.follower is not None
    fetched = [fx.FetchedBatch(header(1, base_offset=0, leader_epoch=1), b"")]
    for epoch in (1, 3):
        assert core.replica.follower.on_pushed(LeaderEpoch(epoch), fetched, fx.Matched(Offset(0), Offset(0))) == []


def test_its_high_watermark_is_never_beyond_its_log() -> None:
    log = FakeLog.of((1, 4))
    follower = Follower(BrokerId(1), record(epoch=2), log, high_watermark=Offset(9))
    assert follower.high_watermark == 4


def test_messages_of_an_old_leader_are_ignored() -> None:
    core = streaming()
    assert core.replica.follower is not None
    core.lead(leader=0, epoch=3, partition_epoch=2)
    assert core.replica.follower.state is State.DETACHED
    assert core.replica.follower.on_answer(EPOCH, fx.Matched(Offset(9), Offset(0)), 0.0) == []
    assert core.replica.follower.on_pushed(EPOCH, [], fx.Matched(Offset(9), Offset(0))) == []
    assert core.replica.on_truncated(EPOCH) == []


# --- Comparing logs ---

LEADER = FakeLog.of((1, 5), (3, 8), (6, 10), start=2)


@pytest.mark.parametrize(
    ("last_epoch", "end", "expected"),
    [
        (6, 10, fx.Matched(Offset(0), Offset(2))),
        (6, 9, fx.Matched(Offset(0), Offset(2))),
        (3, 8, fx.Matched(Offset(0), Offset(2))),
        (3, 9, fx.Diverged(LeaderEpoch(3), Offset(8))),
        (2, 7, fx.Diverged(LeaderEpoch(1), Offset(5))),
        (9, 12, fx.Diverged(LeaderEpoch(6), Offset(10))),
        (5, 8, fx.Diverged(LeaderEpoch(3), Offset(8))),
        (0, 4, fx.StartAt(Offset(2))),
        (1, 1, fx.StartAt(Offset(2))),
        (-1, 0, fx.StartAt(Offset(2))),
        (-1, 2, fx.Matched(Offset(0), Offset(2))),
        (-1, 11, fx.StartAt(Offset(2))),
    ],
)
@pytest.mark.parametrize("counted", [True, False])
def test_the_leaders_comparison(last_epoch: int, end: int, expected: fx.Answer, counted: bool) -> None:
    assert compare_follower(LEADER, Offset(0), LeaderEpoch(last_epoch), Offset(end), counted=counted) == expected


@pytest.mark.parametrize("end", [3, 10])
def test_an_empty_log_ahead_of_the_start_matches_if_it_counts(end: int) -> None:
    def compared(*, counted: bool) -> fx.Answer:
        return compare_follower(LEADER, Offset(0), NO_EPOCH, Offset(end), counted=counted)

    assert compared(counted=True) == fx.Matched(Offset(0), Offset(2))
    assert compared(counted=False) == fx.StartAt(Offset(2))


@pytest.mark.parametrize(
    ("diverged", "end"),
    [((3, 7), 7), ((3, 9), 8), ((2, 6), 5), ((0, 4), 2), ((1, 3), 3)],
)
def test_the_followers_truncation(diverged: tuple[int, int], end: int) -> None:
    assert truncation_for(LEADER, fx.Diverged(LeaderEpoch(diverged[0]), Offset(diverged[1]))) == end
