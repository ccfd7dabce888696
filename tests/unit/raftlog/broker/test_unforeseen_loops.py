"""Every periodic loop continues after an unexpected exception, and its waiters are answered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from metadata.commands.groups import Assign
from metadata.controller import transaction_expiry
from metadata.controller.group_coordinator import Coordinator
from metadata.controller.transaction_expiry import TransactionExpiry
from partitions.driver.driver import PartitionDriver
from partitions.driver.reads import ReplicaReads
from partitions.log import writer as log_writer
from partitions.log.log import PartitionLog
from partitions.upkeep import scrubber
from raftlog.broker.changes import offline_leaders, room_reports, transaction_reports
from raftlog.broker.changes import transactions as broker_transactions
from raftlog.errors import Unforeseen
from raftlog.slices import WorkQueue, in_turns
from raftlog.wire import JoinGroupRequest
from tests.support.clusters.compacted import CompactedCluster
from tests.support.metadata import transactions
from tests.support.partitions.manual import ManualScheduler
from tests.support.partitions.replication_cluster import ReplicationCluster, tp
from tests.unit.partitions.log import test_writer as test_storage_log_writer
from tests.unit.partitions.replication import test_message_queue as test_message_turns
from tests.unit.partitions.upkeep import test_disk_room, test_scrubber
from tests.unit.raftlog.broker.changes import test_group_batches, test_transaction_reports
from tests.unit.raftlog.broker.changes import test_groups as test_broker_groups
from tests.unit.raftlog.broker.changes import test_offline_leaders as test_broker_offline_leaders
from tests.unit.raftlog.broker.changes import test_room_reports as test_broker_room_reports
from tests.unit.raftlog.broker.changes import test_transactions as test_broker_transactions


class Bug(Exception):
    """An unexpected exception."""


def break_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, calls: int = 1) -> None:
    """The next call of this method, or the next few, raise `Bug`."""
    real, left = getattr(owner, name), [calls]

    def breaks(*args: Any, **kwargs: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise Bug(name)
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, breaks)


# --- The log writer ---------------------------------------------------------------------------------------------------


def test_a_job_that_cannot_be_taken_fails_only_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """S2: the others are written, in this round and in later ones; the owner of the one is notified."""
    world = test_storage_log_writer.World()
    break_once(monkeypatch, PartitionLog, "take_job")
    for number in range(3):
        world.append(number)
    world.worker.run_all()
    assert isinstance(world.logs[0].failed, Unforeseen)
    assert sorted(world.told) == [(0, 0), (1, 1), (2, 1)]
    world.append(1)
    world.worker.run_all()
    assert world.logs[1].stable_end_offset == 2
    assert world.writer.idle


def test_a_job_that_no_worker_accepts_counts_as_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = test_storage_log_writer.World()
    break_once(monkeypatch, world.worker, "submit")
    world.append(0)
    world.append(1)
    world.worker.run_all()
    assert isinstance(world.logs[0].failed, Unforeseen)
    assert sorted(world.told) == [(0, 0), (1, 1)]
    assert world.writer.idle


def test_a_round_in_one_call_that_no_worker_accepts_fails_its_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    world = test_storage_log_writer.World()
    monkeypatch.setattr(log_writer, "worth_one_call", lambda count: count > 1)
    for log in world.logs:
        log.shares_syncs = True
    break_once(monkeypatch, world.worker, "submit")
    world.append(0)
    world.append(1)
    world.worker.run_all()
    assert all(isinstance(log.failed, Unforeseen) for log in world.logs[:2])
    assert sorted(world.told) == [(0, 0), (1, 0)]
    assert world.writer.idle


def test_a_result_that_cannot_be_processed_fails_only_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    world = test_storage_log_writer.World()
    break_once(monkeypatch, PartitionLog, "job_done")
    world.append(0)
    world.append(1)
    world.worker.run_all()
    assert isinstance(world.logs[0].failed, Unforeseen) and world.logs[1].stable_end_offset == 1
    assert world.told == [(0, 0), (1, 1)]
    assert world.writer.idle


# --- The scrubber -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["plan_of_log", "still_stands"])
def test_a_pass_of_the_scrubber_continues_after_a_bug_with_one_replica(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    cluster = test_scrubber.Scrubbing(2)
    cluster.flip(cluster.name(".log"), 5)  # so that there is something to find
    break_once(monkeypatch, scrubber, name)
    cluster.scrubber.start()
    with pytest.raises(Bug):
        cluster.pass_time(scrubber.FIRST_PASS_SECONDS[1])
    cluster.pass_time(60.0)
    assert cluster.scrubber.passes == 1
    cluster.pass_time(2 * test_scrubber.INTERVAL)
    assert cluster.scrubber.passes >= 2


def test_a_requested_check_ends_after_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = test_scrubber.Scrubbing(3)
    break_once(monkeypatch, scrubber, "plan_of_log")
    with pytest.raises(Bug):
        cluster.scrubber.scrub_now(list(cluster.manager.drivers))
    cluster.pass_time(10.0)
    assert (cluster.scrubber.run.done, cluster.scrubber.run.running) == (3, False)


# --- Compaction -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["compaction_run", "compacted"])
def test_compaction_continues_after_a_bug(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    cluster = CompactedCluster()
    cluster.fill(60)
    cluster.pass_time()
    manager = cluster.members[0].manager
    driver = manager.drivers[tp(0)]
    owner: Any = PartitionLog if name == "compaction_run" else PartitionDriver
    break_once(monkeypatch, owner, name)
    compactor = manager.compactor

    def look_until_over() -> None:
        compactor.look()
        for _ in range(200):
            cluster.settle()
            cluster.scheduler.advance(0.1)

    with pytest.raises(Bug):
        look_until_over()
    for _ in range(10):
        look_until_over()
    assert compactor.passes
    gone: list[bool] = []
    manager.writer.forget(driver.log, lambda: gone.append(True))
    cluster.settle()
    assert gone, "nobody holds its folder"


def test_a_piece_of_compaction_that_no_worker_accepts_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = CompactedCluster()
    cluster.fill(60)
    cluster.pass_time()
    manager = cluster.members[0].manager
    driver = manager.drivers[tp(0)]
    break_once(monkeypatch, cluster.members[0].worker, "submit")
    with pytest.raises(Bug):
        manager.compactor.look()
    gone: list[bool] = []
    manager.writer.forget(driver.log, lambda: gone.append(True))
    cluster.settle()
    assert gone


# --- Reads ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["read", "readable_end"])
def test_a_read_that_raises_affects_only_its_replica(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The fetch is answered with the other replicas' data; the replica is opened again."""
    cluster = ReplicationCluster(partitions=2)
    for partition in range(2):
        cluster.produce(0, partition)
    cluster.settle()
    break_once(monkeypatch, ReplicaReads if name == "readable_end" else PartitionDriver, name)
    fetched = cluster.fetch(0, 0, 0)
    cluster.settle()
    assert [bool(error) for error in fetched.errors] == [True, False]
    assert fetched.records
    assert cluster.members[0].manager.resets.resets == 1


def test_a_push_that_raises_affects_only_its_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """S4: followers of other partitions get their part of the same message."""
    cluster = ReplicationCluster(partitions=2)
    cluster.settle()
    read, broken = PartitionDriver.read, list[str]()

    def breaks_once(driver: PartitionDriver, *args: Any, **how: Any) -> Any:
        if driver.topic_partition == tp(1) and not broken:
            broken.append(driver.name)
            raise Bug("read")
        return read(driver, *args, **how)

    monkeypatch.setattr(PartitionDriver, "read", breaks_once)
    for partition in range(2):
        cluster.produce(0, partition)
    cluster.settle()
    assert broken
    assert cluster.members[0].manager.resets.resets == 1
    cluster.produce(0, 0)
    cluster.settle()
    assert [member.manager.drivers[tp(0)].log.log_end_offset for member in cluster.members.values()] == [2] * len(
        cluster.members
    )


@pytest.mark.parametrize("name", ["readable_end", "timestamp_search"])
def test_a_search_that_raises_is_answered(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    cluster = ReplicationCluster(partitions=1)
    cluster.produce(0, 0)
    cluster.settle()
    break_once(monkeypatch, ReplicaReads if name == "readable_end" else PartitionLog, name)
    found: list[Any] = []
    cluster.members[0].manager.find_offset(tp(0), 1, found.append)
    cluster.settle()
    assert len(found) == 1 and found[0].error


# --- Periodic checks of leaders ---------------------------------------------------------------------------------------


def test_free_space_is_measured_again_after_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = test_disk_room.Watched()
    for owner, name in ((watched.room, "begin_look"), (watched.room, "looked"), (watched.worker, "submit")):
        with monkeypatch.context() as patch:
            break_once(patch, owner, name)
            with pytest.raises(Bug):
                watched.look()
            watched.look()
    watched.disk.occupy()
    with monkeypatch.context() as patch:
        break_once(patch, watched.watch, "_on_change")
        with pytest.raises(Bug):
            watched.look()
    watched.disk.vacate()
    watched.look()
    assert watched.told == 1 and not watched.room.short


@pytest.mark.parametrize("name", ["_incarnation", "_propose"])
def test_a_broker_low_on_space_reports_it_after_a_bug(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    node = test_broker_room_reports.Node()
    break_once(monkeypatch, node.reports, name)
    node.disk(test_broker_room_reports.FULL)
    with pytest.raises(Bug):
        node.scheduler.run()
    assert node.proposed == []
    node.scheduler.advance(room_reports.LOOK_AGAIN_SECONDS)
    assert len(node.proposed) == 1


@pytest.mark.parametrize("name", ["_is_offline", "_propose"])
def test_a_leadership_is_given_up_after_a_bug(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """S10."""
    node = test_broker_offline_leaders.Node()
    break_once(monkeypatch, node.leaders, name)
    with pytest.raises(Bug):
        node.fails()
    node.wait(2 * offline_leaders.LOOK_AGAIN_SECONDS)
    node.apply()
    assert node.cluster.partition.leader == 1


@pytest.mark.parametrize("name", ["_propose", "_own_epoch"])
def test_markers_are_reported_after_a_bug(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """S13."""
    leader = test_transaction_reports.Leader()
    one = leader.committed(0)
    leader.reports.markers_written(transactions.tp(0), [one])
    break_once(monkeypatch, leader.reports, name)
    with pytest.raises(Bug):
        leader.scheduler.run()
    leader.scheduler.advance(2 * transaction_reports.PAUSE_SECONDS)
    leader.apply()
    assert leader.reports.waiting == 0


def test_the_next_report_follows_an_answer_that_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """S13."""
    leader = test_transaction_reports.Leader()
    one = leader.committed(0, 1)
    leader.written(0, one)
    break_once(monkeypatch, leader.reports, "_take_off")
    with pytest.raises(Bug):
        leader.apply()
    leader.written(1, one)
    leader.scheduler.advance(2 * transaction_reports.PAUSE_SECONDS)
    leader.apply()
    assert leader.reports.waiting == 0


def test_a_later_slice_is_notified_of_a_clock_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    fatal: list[BaseException] = []
    scheduler, clock = ManualScheduler(), ManualScheduler().clock
    following = WorkQueue(scheduler, clock, fatal.append)

    def work() -> Any:
        for _ in range(20):
            clock.advance(0.001)
            yield

    following.add(work)
    with monkeypatch.context() as patch:
        break_once(patch, clock, "monotonic")
        with pytest.raises(Bug):
            scheduler.run()
    assert len(fatal) == 1
    assert following.idle and following.closed


def test_the_items_after_one_with_a_bug_have_their_turn() -> None:
    scheduler, seen = ManualScheduler(), list[int]()

    def do(number: int) -> None:
        seen.append(number)
        if number == 1:
            raise Bug

    with pytest.raises(Bug):
        in_turns(scheduler, range(4), do, lambda: seen.append(-1))
    scheduler.run()
    assert seen == [0, 1, 2, 3, -1]


def test_messages_behind_one_that_raised_are_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftlog.slices.ENTRIES_PER_TURN", 2)
    link = test_message_turns.Link()
    link.send(98, 1)
    with pytest.raises(ZeroDivisionError):
        link.scheduler.run()
    link.scheduler.run()
    assert link.seen == [(98, 0), (98, 1), (98, 2), (1, 0)]


# --- Coordinators and the quorum's changes ---------------------------------------------------------------------------


@pytest.fixture
async def told() -> list[BaseException | None]:
    """The errors that the loop's exception handler gets."""
    heard: list[BaseException | None] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: heard.append(context.get("exception")))
    return heard


def test_a_command_that_raises_fails_its_waiters_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    quorum = test_group_batches.Quorum()
    for owner, name in ((quorum, "propose"), (quorum.batches, "_command")):
        with monkeypatch.context() as patch:
            break_once(patch, owner, name)
            asked = quorum.submit(test_group_batches.change("a"))
            assert asked.code == "outcome_unknown"
        with pytest.raises(Bug):
            quorum.scheduler.run()
        quorum.scheduler.run()
    later = quorum.submit(test_group_batches.change("b"))
    quorum.apply()
    assert later.index


def test_an_answer_that_raises_fails_its_waiters_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    quorum = test_group_batches.Quorum()
    first, second = (quorum.submit(test_group_batches.change(name)) for name in "ab")
    with monkeypatch.context() as patch:
        break_once(patch, quorum.batches, "_answers")
        quorum.apply()
    assert first.code == "outcome_unknown"
    with pytest.raises(Bug):
        quorum.scheduler.run()
    quorum.scheduler.run()
    quorum.apply()
    assert second.index


@pytest.mark.parametrize("name", ["decide", "jobs"])
def test_groups_are_coordinated_after_a_bug(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    node = test_broker_groups.Node()
    break_once(monkeypatch, Coordinator, name)
    with pytest.raises(Bug):
        node.join()
    node.until(lambda: any("Assign" in repr(command) for command in node.commands))
    node.groups.close()


def test_a_groups_change_that_raises_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    node = test_broker_groups.Node()
    submit, broken = node.batches.submit, []

    def breaks_once(change: Any, answer: Any, **named: Any) -> None:
        if isinstance(change, Assign) and not broken:
            broken.append(change)
            raise Bug("submit")
        submit(change, answer, **named)

    monkeypatch.setattr(node.batches, "submit", breaks_once)
    with pytest.raises(Bug):
        node.join()
    node.until(lambda: node.cluster.owned("a") == [0, 1, 2, 3])
    node.groups.close()


@pytest.mark.parametrize("name", ["submit", "_size_of"])
def test_a_members_request_that_raises_is_answered(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    node = test_broker_groups.Node()
    break_once(monkeypatch, node.batches, name)
    answers: list[Any] = []
    request = JoinGroupRequest(0, "readers", "a", "", "", ["orders"], "", "", 10_000, 10_000)
    node.groups.join(request, "", answers.append)
    assert [error.code for error in answers] == ["outcome_unknown"]
    with pytest.raises(Bug):
        node.scheduler.run()
    assert node.join()
    node.groups.close()


def test_transactions_expire_after_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    node = test_broker_transactions.Node()
    block = node.open_block("batch", 5, 100)
    break_once(monkeypatch, TransactionExpiry, "decide")
    node.transactions.wake()
    with pytest.raises(Bug):
        node.scheduler.run()
    node.scheduler.advance(broker_transactions.AFTER_ERROR_SECONDS + 10 * transaction_expiry.LOOK_SECONDS)
    assert node.cluster.view.transactions.block(block.producer_id) is None
