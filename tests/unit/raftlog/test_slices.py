"""Work for each of many replicas is done in slices, and none is forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from partitions.log import writer as log_writer
from partitions.upkeep.ticks import TICK_SECONDS, ReplicaTicks
from raftlog import slices
from raftlog.errors import RaftlogError
from raftlog.slices import WorkQueue, in_turns, run, stepwise, turns
from tests.support.partitions.manual import ManualScheduler
from tests.support.partitions.replication_cluster import ReplicationCluster, tp


@pytest.fixture
def few_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "PER_TURN", 2)
    monkeypatch.setattr(log_writer, "JOBS_PER_TURN", 2)


@pytest.mark.usefixtures("few_a_turn")
def test_each_item_has_its_turn_in_order_and_then_it_is_over() -> None:
    scheduler, seen = ManualScheduler(), list[int | str]()
    in_turns(scheduler, range(5), seen.append, lambda: seen.append("over"))
    assert seen == [0, 1]
    assert scheduler.run() == 2
    assert seen == [0, 1, 2, 3, 4, "over"]


@pytest.mark.usefixtures("few_a_turn")
def test_a_failing_item_is_reported_and_holds_up_no_other() -> None:
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


def test_a_queue_without_a_clock_ends_its_turn_after_each_step_and_after_some_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slices, "ENTRIES_PER_TURN", 3)
    scheduler, seen = ManualScheduler(), list[int]()
    queue = WorkQueue(scheduler)
    queue.add(lambda: stepwise(range(7), seen.append))
    assert seen == [0, 1, 2]
    queue.add(*(partial(seen.append, number) for number in range(10, 17)))
    assert len(queue) == 7 and not queue.idle
    assert scheduler.run() == 4, "two more steps, then three works a turn"
    assert seen == [*range(7), *range(10, 17)] and queue.idle


def test_a_closed_queue_drops_what_is_not_done() -> None:
    scheduler, seen = ManualScheduler(), list[int]()
    queue = WorkQueue(scheduler)
    queue.add(lambda: stepwise(range(200), seen.append), lambda: seen.append(-1))
    queue.close()
    queue.add(lambda: seen.append(-2))
    scheduler.run()
    assert seen == list(range(slices.ENTRIES_PER_TURN))


def test_steps_that_fail_are_reported_and_raised() -> None:
    scheduler, failed = ManualScheduler(), list[str]()

    def steps() -> Iterator[None]:
        yield
        raise ValueError("the second")

    run(scheduler, steps(), lambda error: failed.append(str(error)))
    assert failed == []
    with pytest.raises(ValueError, match="the second"):
        scheduler.run()
    assert failed == ["the second"]


async def test_a_coroutine_takes_its_items_in_turns() -> None:
    assert [(part.start, part.stop) async for part in turns(5, 2)] == [(0, 2), (2, 4), (4, 5)]
    assert [part async for part in turns(0, 2)] == []


@pytest.mark.usefixtures("few_a_turn")
def test_rounds_of_the_log_writer_include_all_jobs_whatever_the_size_of_a_turn() -> None:
    cluster = ReplicationCluster(partitions=7)
    writer = cluster.members[0].manager.writer
    rounds, jobs = writer.rounds, writer.jobs
    answers = [cluster.produce(0, partition) for partition in range(7)]
    cluster.settle()
    assert all(len(one) == 1 and not isinstance(one[0], RaftlogError) for one in answers)
    assert (writer.rounds, writer.jobs) == (rounds + 1, jobs + 7)
    assert writer.idle


@pytest.mark.usefixtures("few_a_turn")
def test_a_log_dropped_while_a_round_is_taken_is_not_written_any_more() -> None:
    cluster = ReplicationCluster(partitions=5)
    member = cluster.members[0]
    answers = [cluster.produce(0, partition) for partition in range(5)]
    gone, forgotten = member.manager.drivers[tp(4)].log, list[bool]()
    # After the round's first turn, before its second.
    cluster.scheduler.call_soon(lambda: member.manager.writer.forget(gone, lambda: forgotten.append(True)))
    cluster.settle()
    assert forgotten == [True]
    assert all(answers[:4])
    assert member.manager.writer.idle


@pytest.mark.usefixtures("few_a_turn")
def test_time_passes_for_all_waiting_replicas_even_after_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = ManualScheduler()
    ticks = ReplicaTicks(scheduler, scheduler.clock)
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
        ticks.want(Waits(number))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a bug in one"):
        scheduler.advance(TICK_SECONDS)
    assert ticked == [0, 1, 2, 3]
    scheduler.run()
    assert ticked == [0, 1, 2, 3, 4, 5, 6]
    scheduler.advance(TICK_SECONDS)
    assert ticked[7:] == [0, 1, 2, 3, 4, 5, 6]
