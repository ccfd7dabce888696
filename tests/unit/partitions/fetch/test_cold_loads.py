"""Answers whose data comes from the disk take turns, so that what is loaded and not sent yet is bounded (S10, S11)."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from partitions.driver.driver import PartitionDriver
from partitions.fetch import cold_loads
from partitions.fetch.cold_loads import ColdLoads
from partitions.fetch.reads import PartitionRead
from partitions.log.slice import LogSlice
from raftlog.config import MIB
from raftlog.errors import RaftlogError, RetriableError
from raftlog.model import Offset
from raftlog.slices import PER_TURN
from raftlog.wire import FetchPartition
from tests.support.partitions.manual import ManualClock, ManualScheduler, ManualWorker
from tests.support.partitions.replication_cluster import Fetch, ReplicationCluster

ASKED = FetchPartition(bytes(16), 0, 0, MIB)


class Driver:
    """The part of a partition that loads need."""

    def __init__(self) -> None:
        self.traffic = SimpleNamespace(fetched_bytes=0)
        self.failures: list[BaseException] = []

    def on_load_failed(self, error: BaseException) -> RaftlogError:
        self.failures.append(error)
        return RetriableError("replica_not_available", str(error))


def cold_read(nbytes: int, load: Callable[[], LogSlice] | None = None, driver: Driver | None = None) -> PartitionRead:
    found = LogSlice(Offset(0), Offset(1), [b"x"], 1)
    piece = LogSlice(Offset(0), Offset(1), load=load or (lambda: found))
    return PartitionRead(ASKED, cast(PartitionDriver | None, driver), piece=piece, most_bytes=nbytes)


class Loads:
    """Loads with a worker whose work the test carries out."""

    def __init__(self) -> None:
        self.scheduler = ManualScheduler(ManualClock())
        self.worker = ManualWorker(self.scheduler)
        self.loads = ColdLoads(self.scheduler, self.worker)
        self.done: list[str] = []
        self.reads: dict[str, list[PartitionRead]] = {}

    def ask(self, name: str, *sizes: int) -> None:
        self.reads[name] = [cold_read(size) for size in sizes]
        self.loads.complete(self.reads[name], lambda: self.done.append(name))

    def one_ends(self) -> None:
        self.worker.run_one()
        self.scheduler.run()


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Loads:
    monkeypatch.setattr(cold_loads, "MAX_LOADED_BYTES", 100)
    return Loads()


def test_the_bytes_that_may_come_are_bounded_and_answers_take_turns(loads: Loads) -> None:
    for name in "abcde":
        loads.ask(name, 20, 20)
    assert len(loads.worker.pending) == 4 and len(loads.loads) == 3 and loads.loads.reserved == 80
    for _ in range(2):
        loads.one_ends()
    assert loads.done == ["a"] and len(loads.worker.pending) == 4
    most = 0
    while loads.worker.pending:
        loads.one_ends()
        most = max(most, loads.loads.reserved)
    assert loads.done == list("abcde") and most <= 100 and loads.loads.reserved == 0
    assert all(read.piece is not None and read.piece.length == 1 for reads in loads.reads.values() for read in reads)


def test_an_answer_that_needs_more_than_all_is_loaded_alone(loads: Loads) -> None:
    loads.ask("large", 90, 90)
    loads.ask("small", 1)
    assert len(loads.worker.pending) == 2 and len(loads.loads) == 1
    for _ in range(3):
        loads.one_ends()
    assert loads.done == ["large", "small"]


def test_a_small_answer_does_not_overtake_one_that_waits(loads: Loads) -> None:
    loads.ask("a", 60)
    loads.ask("b", 60)
    loads.ask("c", 10)
    assert len(loads.worker.pending) == 1
    loads.one_ends()
    assert loads.done == ["a"] and len(loads.worker.pending) == 2


def test_too_many_that_wait_are_refused_and_so_are_those_of_a_stopping_broker(
    loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_loads, "MAX_WAITING", 2)
    for name in "abcd":
        loads.ask(name, 100)
    assert loads.done == ["d"]
    (refused,) = loads.reads["d"]
    assert refused.error is not None and refused.error.code == "overloaded" and refused.piece is None
    loads.loads.close()
    assert loads.done == ["d", "b", "c"]
    assert [loads.reads[name][0].error.code for name in "bc"] == ["leader_not_available"] * 2  # type: ignore[union-attr]
    loads.one_ends()
    assert loads.done == ["d", "b", "c", "a"] and not loads.worker.pending


def test_an_answer_that_fails_gives_its_bytes_back(loads: Loads) -> None:
    def broken() -> None:
        raise RuntimeError("the stream is gone")

    loads.loads.complete([cold_read(100)], broken)
    loads.ask("next", 100)
    loads.worker.run_one()
    with pytest.raises(RuntimeError):
        loads.scheduler.run()
    loads.one_ends()
    assert loads.done == ["next"] and loads.loads.reserved == 0


def test_what_is_loaded_counts_as_traffic_of_its_partition(loads: Loads) -> None:
    driver = Driver()
    loads.loads.complete([cold_read(10, driver=driver) for _ in range(3)], lambda: loads.done.append("a"))
    for _ in range(3):
        loads.one_ends()
    assert loads.done == ["a"] and driver.traffic.fetched_bytes == 3


def test_a_read_that_fails_gets_its_partitions_error_and_the_others_their_data(loads: Loads) -> None:
    def broken() -> LogSlice:
        raise OSError("the disk is gone")

    driver = Driver()
    bad, good = cold_read(10, broken, driver), cold_read(10, driver=driver)
    loads.loads.complete([bad, good], lambda: loads.done.append("a"))
    for _ in range(2):
        loads.one_ends()
    assert bad.error is not None and bad.error.code == "replica_not_available" and bad.piece is None
    assert [str(error) for error in driver.failures] == ["the disk is gone"]
    assert good.error is None and good.piece is not None
    assert loads.done == ["a"] and loads.loads.reserved == 0


def test_a_read_that_no_worker_takes_fails_like_one_on_a_worker(loads: Loads, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(*work: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(loads.worker, "submit", no_thread)
    driver = Driver()
    read = cold_read(10, driver=driver)
    loads.loads.complete([read], lambda: loads.done.append("a"))
    assert read.error is not None and len(driver.failures) == 1
    assert loads.done == ["a"] and loads.loads.reserved == 0


def test_the_reads_of_a_large_answer_begin_in_several_turns(loads: Loads) -> None:
    loads.ask("a", *[0] * (2 * PER_TURN + 1))
    assert len(loads.worker.pending) == PER_TURN
    loads.scheduler.run()
    assert len(loads.worker.pending) == 2 * PER_TURN + 1


def test_fetches_of_cold_data_of_many_consumers_hold_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every consumer's fetch was loaded at once, whatever the others held."""
    monkeypatch.setattr(cold_loads, "MAX_LOADED_BYTES", 2 * MIB)
    cluster = ReplicationCluster(1, cache_bytes=0)
    cluster.produce(0, size=1000)
    cluster.settle()
    leader = cluster.members[0]
    leader.disk.cold = True
    fetches: list[Fetch] = [cluster.fetch(0, 0, max_bytes=MIB) for _ in range(20)]
    assert len(leader.worker.pending) == 2, "each may bring a batch of 1 MiB"
    most = [0]
    submit: Callable[..., Any] = leader.worker.submit

    def counted(*work: Any) -> None:
        submit(*work)
        most.append(len(leader.worker.pending))

    monkeypatch.setattr(leader.worker, "submit", counted)
    cluster.settle()
    assert [fetch.records for fetch in fetches] == [1] * 20 and max(most) <= 2
