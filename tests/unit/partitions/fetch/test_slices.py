"""A fetch over many partitions takes several turns of the loop; nothing that arrives meanwhile is missed (S1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from partitions.fetch import long_polls as fetch_waiters
from partitions.fetch import reads as fetch_reads
from partitions.fetch import session as fetch_session
from partitions.fetch.reads import PartitionRead
from raftlog import slices
from raftlog.errors import RetriableError
from raftlog.ports import FileRegion
from raftlog.wire import FetchPartition
from tests.support.client.session_reader import SessionReader
from tests.support.partitions.replication_cluster import TOPIC, Fetch, ReplicationCluster, tp

PARTITIONS = 7


class Reads:
    """The partitions that long polls read, turn by turn; `meanwhile` is called before one of them is read."""

    def __init__(self, cluster: CountedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.turns: list[list[int]] = []
        self.given: list[PartitionRead] = []
        self.meanwhile: dict[int, Callable[[], Any]] = {}
        self._calls = -1
        self._cluster = cluster
        self._read = fetch_reads.read_partition
        monkeypatch.setattr(fetch_waiters, "read_partition", self)

    def __call__(self, replicas: Any, asked: Any, room: int, **how: Any) -> PartitionRead:
        calls = self._cluster.scheduler_calls
        if calls != self._calls:
            self._calls = calls
            self.turns.append([])
        self.turns[-1].append(asked.partition)
        if asked.partition in self.meanwhile:
            self.meanwhile.pop(asked.partition)()
        self.given.append(self._read(replicas, asked, room, **how))
        return self.given[-1]


class CountedCluster(ReplicationCluster):
    """Distinguishes turns of the loop."""

    scheduler_calls = 0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        soon = self.scheduler.call_later

        def counted(delay: float, callback: Callable[[], None]) -> Any:
            def turn() -> None:
                self.scheduler_calls += 1
                callback()

            return soon(delay, turn)

        self.scheduler.call_later = counted  # type: ignore[method-assign]

    def waiters(self) -> list[int]:
        drivers = self.members[0].manager.drivers
        return [drivers[tp(number)].facts().waiters for number in range(PARTITIONS)]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> CountedCluster:
    monkeypatch.setattr(fetch_waiters, "READS_A_TURN", 3)
    monkeypatch.setattr(fetch_waiters, "ANSWERS_A_TURN", 2)
    monkeypatch.setattr(slices, "PER_TURN", 2)
    return CountedCluster(PARTITIONS)


@pytest.fixture
def reads(cluster: CountedCluster, monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(cluster, monkeypatch)


def fetch_all(cluster: CountedCluster, **how: Any) -> Fetch:
    return cluster.fetch(0, *[0] * PARTITIONS, **how)


def test_no_turn_reads_all_and_the_answer_is_in_the_order_of_the_request(cluster: CountedCluster, reads: Reads) -> None:
    for partition in range(PARTITIONS):
        cluster.produce(0, partition)
    cluster.settle()
    fetch = fetch_all(cluster)
    assert reads.turns == [[0, 1, 2]], "it goes on in later turns"
    cluster.settle()
    assert reads.turns == [[0, 1, 2], [3, 4, 5], [6]]
    assert fetch.answers is not None
    assert [answer.partition for answer in fetch.answers] == list(range(PARTITIONS))
    assert fetch.records == PARTITIONS
    assert cluster.waiters() == [0] * PARTITIONS


def test_data_for_a_partition_that_was_already_read_is_not_missed(cluster: CountedCluster, reads: Reads) -> None:
    def write() -> None:
        cluster.produce(0, 1)
        cluster.settle()

    reads.meanwhile[5] = write
    fetch = fetch_all(cluster, wait_ms=10_000)
    cluster.settle()
    assert fetch.records == 1, "long before its time is up"
    assert cluster.waiters() == [0] * PARTITIONS


def test_the_deadline_may_pass_while_it_is_read(cluster: CountedCluster, reads: Reads) -> None:
    reads.meanwhile[5] = lambda: cluster.scheduler.advance(1.0)
    fetch = fetch_all(cluster, wait_ms=100)
    cluster.settle()
    assert fetch.errors == [""] * PARTITIONS
    assert len(reads.given) == PARTITIONS, "what was read then is the answer"
    cluster.scheduler.advance(1.0)
    assert cluster.waiters() == [0] * PARTITIONS


@pytest.mark.parametrize("when", [0, 4, 6])
def test_a_request_cancelled_while_it_is_read_leaves_nothing_behind(
    cluster: CountedCluster, reads: Reads, when: int
) -> None:
    for partition in range(PARTITIONS):
        cluster.produce(0, partition)
    cluster.settle()
    made: list[Fetch] = []
    fetch = fetch_all(cluster, wait_ms=1000, min_bytes=1 << 19)
    made.append(fetch)
    reads.meanwhile[when or 3] = lambda: made[0].handle.cancel()
    if not when:
        fetch.handle.cancel()
    released = [read for read in reads.given if read.piece is not None]
    cluster.settle()
    cluster.scheduler.advance(2.0)
    assert fetch.answers is None
    assert cluster.waiters() == [0] * PARTITIONS
    assert len(cluster.members[0].manager.fetches) == 0
    assert not any(isinstance(p, FileRegion) for read in released if read.piece for p in read.piece.parts)


def test_a_request_that_takes_more_than_a_turn_counts_as_waiting(
    cluster: CountedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_waiters, "MAX_WAITING_PARTITIONS", 2 * PARTITIONS - 1)
    first, second = fetch_all(cluster), fetch_all(cluster)
    small = cluster.fetch(0, 0, 0)
    assert small.errors == ["", ""]
    cluster.settle()
    assert (first.errors, second.errors) == ([""] * PARTITIONS, ["overloaded"] * PARTITIONS)
    again = fetch_all(cluster)
    cluster.settle()
    assert again.errors == [""] * PARTITIONS


def test_all_cold_data_is_loaded(cluster: CountedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_waiters, "READS_A_TURN", 100)
    cold = CountedCluster(PARTITIONS, cache_bytes=0)
    for partition in range(PARTITIONS):
        cold.produce(0, partition)
    cold.settle()
    cold.members[0].disk.cold = True
    fetch = fetch_all(cold, max_bytes=16 << 20)
    assert len(cold.members[0].worker.pending) == 2, "handed over two a turn"
    cold.settle()
    assert fetch.records == PARTITIONS


def test_a_stopping_broker_answers_requests_that_are_being_read(cluster: CountedCluster) -> None:
    fetch = fetch_all(cluster, wait_ms=10_000)
    cluster.members[0].manager.close(lambda clean: None)
    cluster.settle()
    assert fetch.answers is not None and len(fetch.answers) == PARTITIONS


def test_small_batches_count_in_a_sessions_turn_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_session, "READS_A_TURN", 4)
    cluster = ReplicationCluster(3)
    for partition in range(3):
        for _ in range(5 * fetch_reads.BATCHES_A_READ):
            cluster.produce(0, partition)
    cluster.settle()
    reader = SessionReader(cluster)
    polls = [reader.poll({number + 1: (number, 0) for number in range(3)}, min_bytes=1 << 19)]
    polls += [reader.poll(min_bytes=1 << 19) for _ in range(2)]
    cluster.settle()
    assert [poll.values for poll in polls] == [5 * fetch_reads.BATCHES_A_READ] * 3, "a turn makes no larger answers"


def test_no_turn_adds_all_named_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_session, "TAKEN_A_TURN", 2)
    cluster = CountedCluster(PARTITIONS)
    reader = SessionReader(cluster)
    poll = reader.poll({number + 1: (number, 0) for number in range(PARTITIONS)}, wait_ms=10_000)
    assert reader.session is not None
    assert len(reader.session) == reader.sessions.slots == PARTITIONS
    reader.poll(dropped=(1, 2, 6, 7), wait_ms=10_000)
    assert cluster.waiters() != [1] * PARTITIONS, "the rest is taken in later"
    cluster.settle()
    assert cluster.waiters() == [0, 0, 1, 1, 1, 0, 0], "what was dropped before it was taken in waits nowhere"
    for partition in range(PARTITIONS):
        cluster.produce(0, partition)
    cluster.settle()
    assert sorted(poll.over) == [3, 4, 5]
    assert len(reader.session) == reader.sessions.slots == 0


def test_a_request_with_too_many_slots_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_session, "TAKEN_A_TURN", 2)
    monkeypatch.setattr(fetch_session, "MAX_NAMED", 10)
    cluster = ReplicationCluster(PARTITIONS)
    reader = SessionReader(cluster)
    reader.poll({number + 1: (number, 0) for number in range(PARTITIONS)})
    reader.poll(dropped=(100, 101, 102))
    with pytest.raises(RetriableError, match="are still being added"):
        reader.poll({101 + number: (number, 0) for number in range(PARTITIONS)})
    assert reader.sessions.slots == PARTITIONS, "nothing of it was done (S11)"
    reader.close()
    assert reader.sessions.slots == 0
    cluster.settle()


class Bug(Exception):
    """An unexpected exception."""


def break_reads(monkeypatch: pytest.MonkeyPatch, partition: int) -> list[PartitionRead]:
    """Reading this partition raises; the results of the others are in the list."""
    read_partition, given = fetch_reads.read_partition, list[PartitionRead]()

    def read(replicas: Any, asked: Any, room: int, **options: Any) -> PartitionRead:
        if asked.partition == partition:
            raise Bug
        given.append(read_partition(replicas, asked, room, **options))
        return given[-1]

    monkeypatch.setattr(fetch_waiters, "read_partition", read)
    monkeypatch.setattr(fetch_session, "read_partition", read)
    return given


@pytest.mark.parametrize("turn", ["the first", "a later one"])
def test_a_poll_that_meets_a_bug_is_answered(turn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = CountedCluster(PARTITIONS)
    monkeypatch.setattr(fetch_waiters, "READS_A_TURN", 100 if turn == "the first" else 2)
    for partition in range(PARTITIONS):
        cluster.produce(0, partition)
    cluster.settle()
    given = break_reads(monkeypatch, PARTITIONS - 1)
    fetch = Fetch()
    asked = [FetchPartition(TOPIC, partition, 0, 1 << 20) for partition in range(PARTITIONS)]
    with pytest.raises(Bug):
        cluster.members[0].manager.fetch(asked, fetch.done, min_bytes=1, max_bytes=1 << 20, max_wait_ms=10_000)
        cluster.settle()
    assert fetch.errors == ["offset_not_available"] * PARTITIONS
    cluster.settle()
    assert len(given) == PARTITIONS - 1 and not any(read.piece and read.piece.parts for read in given), "released"
    assert cluster.waiters() == [0] * PARTITIONS and len(cluster.members[0].manager.fetches) == 0


def test_a_session_that_meets_a_bug_closes_and_its_polls_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot that is in no list any more would never be answered."""
    cluster = CountedCluster(PARTITIONS)
    reader = SessionReader(cluster)
    waiting = reader.poll({1: (0, 0), 2: (1, 0)}, wait_ms=10_000)
    break_reads(monkeypatch, 1)
    cluster.produce(0, 1)
    with pytest.raises(Bug):
        cluster.settle()
    assert waiting.slots == []
    with pytest.raises(RetriableError) as refused:
        reader.poll()
    assert refused.value.code == "unknown_fetch_session"
    cluster.settle()
    assert cluster.waiters() == [0] * PARTITIONS and reader.sessions.slots == 0
