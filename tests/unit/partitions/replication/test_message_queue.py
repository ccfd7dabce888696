"""Large messages of a link are handled in several turns, in order, and nothing after a protocol violation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from partitions.replication import client as replication_client
from partitions.replication import pushes as replication_pushes
from partitions.replication.message_queue import WAITING_MAX, MessageQueue
from raftlog import slices
from raftlog.errors import RaftlogError, RemoteProtocolError
from raftlog.slices import stepwise
from tests.support.partitions.manual import ManualScheduler
from tests.support.partitions.replication_cluster import ReplicationCluster, tp

MANY = 30


class Link:
    """A message is its number of entries; 99 violates the protocol, and 98 meets a bug."""

    def __init__(self) -> None:
        self.scheduler = ManualScheduler()
        self.seen: list[tuple[int, int]] = []
        self.failures: list[str] = []
        self.turns = MessageQueue(self.scheduler, self.begin, lambda error: self.failures.append(error.detail))

    def begin(self, message: memoryview) -> Iterator[None]:
        (size,) = message

        def do(entry: int) -> None:
            if size == 99 and entry == 3:
                raise RemoteProtocolError("ninety-nine")
            if size == 98 and entry == 3:
                raise ZeroDivisionError
            self.seen.append((size, entry))

        return stepwise(range(size), do)

    def send(self, *sizes: int) -> None:
        for size in sizes:
            self.turns.on_message(memoryview(bytes([size])))


@pytest.fixture(autouse=True)
def two_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "ENTRIES_PER_TURN", 2)
    monkeypatch.setattr(replication_client, "ENTRIES_PER_FRAME", 7)
    monkeypatch.setattr(replication_pushes, "ENTRIES_PER_PUSH", 5)
    monkeypatch.setattr(replication_pushes, "MARKS_PER_PUSH", 5)


def test_small_messages_are_handled_at_once_and_large_ones_in_turns() -> None:
    link = Link()
    link.send(0, 1, 2)
    assert link.seen == [(1, 0), (2, 0), (2, 1)]
    assert link.scheduler.run() == 0, "nothing is left to do"
    link.seen.clear()
    link.send(5, 1)
    assert link.seen == [(5, 0), (5, 1)]
    assert link.scheduler.run() == 2
    assert link.seen == [*((5, entry) for entry in range(5)), (1, 0)]


def test_nothing_is_handled_after_a_protocol_violation() -> None:
    link = Link()
    link.send(99, 1)
    link.scheduler.run()
    link.send(1)
    assert link.seen == [(99, 0), (99, 1), (99, 2)]
    assert link.failures == ["ninety-nine"]


def test_nothing_is_handled_after_the_end() -> None:
    link = Link()
    link.send(5, 1)
    link.turns.close()
    link.scheduler.run()
    assert link.seen == [(5, 0), (5, 1)] and not link.failures


def test_a_peer_that_never_waits_is_cut_off() -> None:
    link = Link()
    link.send(5, *[1] * WAITING_MAX)
    assert not link.failures
    link.send(1)
    assert len(link.failures) == 1
    link.scheduler.run()
    assert link.seen == [(5, 0), (5, 1)]


def test_a_message_that_arrives_while_another_is_handled_waits_for_it() -> None:
    """A few entries are handled without a pause; messages sent meanwhile nevertheless come behind them."""
    scheduler, seen = ManualScheduler(), list[tuple[int, int]]()

    def begin(message: memoryview) -> Iterator[None]:
        (size,) = message

        def do(entry: int) -> None:
            if size == 2 and entry == 0:
                turns.on_message(memoryview(b"\1"))
            seen.append((size, entry))

        return stepwise(range(size), do)

    turns = MessageQueue(scheduler, begin, lambda error: None)
    turns.on_message(memoryview(b"\2"))
    assert seen == [(2, 0), (2, 1), (1, 0)]
    assert scheduler.run() == 0, "nothing had to wait for another turn"
    turns.on_message(memoryview(b"\3"))
    assert seen[3:] == [(3, 0), (3, 1)]
    scheduler.run()
    assert seen[3:] == [(3, 0), (3, 1), (3, 2)]


def test_a_bug_in_one_message_does_not_keep_the_next_waiting() -> None:
    scheduler, seen = ManualScheduler(), list[int]()

    def begin(message: memoryview) -> Iterator[None]:
        if message[0] == 0:
            raise ValueError("a bug")
        seen.append(message[0])
        yield from ()

    turns = MessageQueue(scheduler, begin, lambda error: None)
    with pytest.raises(ValueError, match="a bug"):
        turns.on_message(memoryview(b"\0"))
    turns.on_message(memoryview(b"\1"))
    assert seen == [1]


def test_many_partitions_are_replicated_with_any_size_of_a_turn() -> None:
    """S1, S4: subscriptions, answers, pushes, acknowledgements and marks, all in pieces."""
    cluster = ReplicationCluster(MANY, brokers=3, minimum=3)
    for turn in range(3):
        answers = [cluster.produce(0, partition) for partition in range(MANY)]
        cluster.settle()
        assert all(len(one) == 1 and not isinstance(one[0], RaftlogError) for one in answers), turn
    cluster.scheduler.advance(1.0)
    cluster.settle()
    for member in cluster.members.values():
        ends = {driver.log.stable_end_offset for driver in member.manager.drivers.values()}
        marks = {driver.replica.high_watermark for driver in member.manager.drivers.values()}
        assert (ends, marks) == ({3}, {3})


def test_a_link_that_breaks_in_the_middle_of_everything_is_replaced() -> None:
    cluster = ReplicationCluster(MANY, minimum=2)
    answers = [cluster.produce(0, partition) for partition in range(MANY)]
    for _ in range(3):
        cluster.scheduler.call_soon(lambda: cluster.members[1].links[0].close())
        cluster.settle()
        cluster.dial(1, 0)
        answers += [cluster.produce(0, partition) for partition in range(MANY)]
    cluster.settle()
    assert all(len(one) == 1 and not isinstance(one[0], RaftlogError) for one in answers)
    assert cluster.members[1].manager.drivers[tp(MANY - 1)].log.stable_end_offset == 4
