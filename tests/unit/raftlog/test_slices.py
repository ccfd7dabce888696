"""What is done for each of many replicas is done some at a time, and nobody is forgotten."""

from __future__ import annotations

import pytest

from partitions.log import writer as log_writer
from partitions.upkeep.ticks import TICK_SECONDS
from raftlog import slices
from raftlog.errors import RaftlogError
from raftlog.slices import in_turns
from tests.support.manual import ManualScheduler
from tests.support.replication_cluster import ReplicationCluster, tp


@pytest.fixture
def few_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "PER_TURN", 2)
    monkeypatch.setattr(log_writer, "JOBS_PER_TURN", 2)


@pytest.mark.usefixtures("few_a_turn")
def test_each_has_its_turn_in_order_and_then_it_is_over() -> None:
    scheduler, seen = ManualScheduler(), list[int | str]()
    in_turns(scheduler, range(5), seen.append, lambda: seen.append("over"))
    assert seen == [0, 1]
    assert scheduler.run() == 2
    assert seen == [0, 1, 2, 3, 4, "over"]


@pytest.mark.usefixtures("few_a_turn")
def test_who_fails_is_told_of_and_holds_up_no_other() -> None:
    scheduler, seen = ManualScheduler(), list[int | str]()

    def do(number: int) -> None:
        seen.append(number)
        if number == 3:
            raise ValueError("the fourth")

    in_turns(scheduler, range(9), do, lambda: seen.append("over"))
    with pytest.raises(ValueError, match="the fourth"):
        scheduler.run()
    assert seen == [0, 1, 2, 3]
    assert scheduler.run() == 3
    assert seen == [*range(9), "over"]


@pytest.mark.usefixtures("few_a_turn")
def test_rounds_of_the_log_writer_take_all_jobs_whatever_a_turn_may_take() -> None:
    cluster = ReplicationCluster(partitions=7)
    writer = cluster.members[0].manager._writer
    rounds, jobs = writer.rounds, writer.jobs
    answers = [cluster.produce(0, partition) for partition in range(7)]
    cluster.settle()
    assert all(len(one) == 1 and not isinstance(one[0], RaftlogError) for one in answers)
    assert (writer.rounds, writer.jobs) == (rounds + 1, jobs + 7)
    assert writer.idle


@pytest.mark.usefixtures("few_a_turn")
def test_a_log_that_is_forgotten_while_a_round_is_taken_is_not_written_any_more() -> None:
    cluster = ReplicationCluster(partitions=5)
    member = cluster.members[0]
    answers = [cluster.produce(0, partition) for partition in range(5)]
    gone, forgotten = member.manager.drivers[tp(4)].log, list[bool]()
    # After the round's first turn, before its second.
    cluster.scheduler.call_soon(lambda: member.manager._writer.forget(gone, lambda: forgotten.append(True)))
    cluster.settle()
    assert forgotten == [True]
    assert all(answers[:4])
    assert member.manager._writer.idle


@pytest.mark.usefixtures("few_a_turn")
def test_time_passes_for_all_who_wait_and_on_after_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = ReplicationCluster(partitions=7)
    manager = cluster.members[0].manager
    ticked: list[int] = []

    class Waits:
        quiet = False

        def __init__(self, number: int) -> None:
            self.number = number

        def on_tick(self, now: float) -> None:
            ticked.append(self.number)
            if self.number == 3 and len(ticked) < 7:
                raise ValueError("a bug in one")

    for number in range(7):
        manager._ticks.want(Waits(number))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a bug in one"):
        cluster.scheduler.advance(TICK_SECONDS)
    assert ticked == [0, 1, 2, 3]
    cluster.scheduler.run()
    assert ticked == [0, 1, 2, 3, 4, 5, 6]
    cluster.scheduler.advance(TICK_SECONDS)
    assert ticked[7:] == [0, 1, 2, 3, 4, 5, 6]
