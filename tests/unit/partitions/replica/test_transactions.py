"""Transactions in the log of a cluster: the batches that leaders accept, the markers that they write, the records that
readers see (S13).

Real managers and logs; the test makes the decisions, and determines the brokers that receive them.
"""

from __future__ import annotations

import pytest

from partitions.replica import transactions as leader_transactions
from raftlog.errors import RaftlogError
from raftlog.model import Acks
from raftlog.records.batch import ControlKind, RecordBatch, split_batches
from raftlog.wire import TIMESTAMP_LATEST, FoundOffset
from tests.support.partitions.replication_cluster import Fetch, ReplicationCluster, bytes_of, tp
from tests.support.partitions.replication_cores import NoTransactions
from tests.support.partitions.transaction_logs import key

A, B = key(1), key(2)


def offset_of(answers: list[object]) -> int:
    (answer,) = answers
    assert not isinstance(answer, RaftlogError), answer
    return answer.base_offset  # type: ignore[attr-defined,no-any-return]


def refused(answers: list[object]) -> str:
    (answer,) = answers
    assert isinstance(answer, RaftlogError)
    return answer.code


def read(cluster: ReplicationCluster, number: int = 0, offset: int = 0) -> list[bytes | None]:
    """The records that a `read_committed` reader sees."""
    return fetched(cluster, number, offset).committed()


def fetched(cluster: ReplicationCluster, number: int = 0, offset: int = 0) -> Fetch:
    fetch = cluster.fetch(number, offset, isolation=1)
    cluster.settle()
    assert fetch.errors == [""]
    return fetch


def markers(cluster: ReplicationCluster, number: int = 0) -> list[tuple[int, str, list[tuple[int, ...]]]]:
    """(offset, kind, entries) of every control batch in a broker's log."""
    log = cluster.members[number].manager.drivers[tp(0)].log
    slice_ = log.read(log.log_start_offset, log.log_end_offset, 1 << 20)
    found = list(map(RecordBatch, split_batches(b"".join(map(bytes_of, slice_.parts)))))
    return [
        (
            one.header.base_offset,
            ControlKind(one.control.kind).name,
            [(entry.producer_id, entry.producer_epoch, entry.named_offset) for entry in one.control.entries],
        )
        for one in found
        if one.control is not None
    ]


def wait(cluster: ReplicationCluster, seconds: float = 0.2) -> None:
    for _ in range(3):
        cluster.settle()
        cluster.scheduler.advance(seconds / 3)
    cluster.settle()


def test_a_committed_transaction_is_visible_completely_and_an_aborted_one_not_at_all() -> None:
    """S13."""
    cluster = ReplicationCluster()
    ends = []
    for one, value in ((A, b"a0"), (B, b"b0"), (A, b"a1")):
        cluster.write(0, one, value, sequence=1 if value == b"a1" else 0)
        cluster.settle()
        ends.append(cluster.log_end(0)[0])
    plain = cluster.produce(0, size=1)
    cluster.settle()
    assert offset_of(plain) == 3
    fetch = fetched(cluster)
    assert fetch.answers is not None
    assert (fetch.answers[0].last_stable_offset, fetch.answers[0].high_watermark) == (0, 4)
    assert fetch.batches == []
    assert cluster.fetch(0, 0).records == 4, "others see all of it"
    cluster.decide(lambda decisions: decisions.commit(A, {tp(0): ends[2]}))
    wait(cluster)
    assert markers(cluster) == [(4, "COMMIT", [(1, 0, 3)])] == markers(cluster, 1)
    assert read(cluster) == [b"a0"], "B is still open"
    cluster.decide(lambda decisions: decisions.abort(B))
    wait(cluster)
    assert markers(cluster)[1:] == [(5, "ABORT", [(2, 0, -1)])]
    assert read(cluster) == [b"a0", b"a1", b"\0"]
    assert cluster.members[0].markers == [(tp(0), A)], "of aborts nothing is reported"


def test_one_marker_names_all_with_the_same_decision() -> None:
    cluster = ReplicationCluster()
    for number in range(6):
        cluster.write(0, key(number), b"x")
    cluster.settle()

    def decide(decisions: object) -> None:
        for number in range(6):
            if number % 2:
                decisions.abort(key(number))  # type: ignore[attr-defined]
            else:
                decisions.commit(key(number), {tp(0): number + 1})  # type: ignore[attr-defined]

    cluster.decide(decide)
    wait(cluster)
    assert markers(cluster) == [
        (6, "ABORT", [(1, 0, -1), (3, 0, -1), (5, 0, -1)]),
        (7, "COMMIT", [(0, 0, 1), (2, 0, 3), (4, 0, 5)]),
    ]
    assert read(cluster) == [b"x"] * 3


def test_a_commit_includes_no_late_write_and_nothing_of_a_partition_that_it_does_not_name() -> None:
    """R4, and `offsets in the commit`."""
    cluster = ReplicationCluster(2)
    for partition in (0, 1):
        cluster.write(0, A, b"meant", partition=partition)
    cluster.write(0, A, b"late", sequence=1)
    cluster.settle()
    cluster.decide(lambda decisions: decisions.commit(A, {tp(0): 1}))
    wait(cluster)
    assert markers(cluster) == [(2, "COMMIT", [(1, 0, 1)])]
    fetch = cluster.fetch(0, 0, 0, isolation=1)
    cluster.settle()
    assert fetch.answers is not None
    assert [answer.last_stable_offset for answer in fetch.answers] == [3, 2]
    assert [[tuple(r.__getattribute__(f) for f in r.__struct_fields__) for r in a.aborted] for a in fetch.answers] == [
        [(1, 0, 1, 2)],
        [(1, 0, 0, 1)],
    ]
    assert read(cluster) == [b"meant"]


@pytest.mark.parametrize("acks", [Acks.LEADER, Acks.NONE])
def test_batches_of_a_transaction_need_acks_all(acks: Acks) -> None:
    cluster = ReplicationCluster()
    assert refused(cluster.write(0, A, b"x", acks=acks)) == "invalid_request"
    assert cluster.log_end(0) == (0, 0)


def test_a_late_write_is_refused_if_the_decision_is_known() -> None:
    cluster = ReplicationCluster()
    cluster.write(0, A, b"x")
    cluster.settle()
    cluster.decide(lambda decisions: decisions.abort(A))
    assert refused(cluster.write(0, A, b"y", sequence=1)) == "transaction_aborted"
    assert refused(cluster.write(0, A, b"x")) == "transaction_aborted", "a resend gets the same"
    wait(cluster)
    assert refused(cluster.write(0, A, b"y", sequence=1)) == "transaction_aborted"
    assert markers(cluster) == [(1, "ABORT", [(1, 0, -1)])]


def test_a_late_write_under_a_lagging_leader_is_aborted_when_it_catches_up() -> None:
    cluster = ReplicationCluster()
    cluster.write(0, A, b"x")
    cluster.settle()
    cluster.decide(lambda decisions: decisions.commit(A, {tp(0): 1}), to=[1])
    late = cluster.write(0, A, b"late", sequence=1)
    cluster.settle()
    assert offset_of(late) == 1
    cluster.elect(1)
    wait(cluster)
    assert markers(cluster, 1) == [(2, "COMMIT", [(1, 0, 1)])]
    assert read(cluster, 1) == [b"x"]


def test_a_transaction_unknown_to_the_quorum_is_not_begun() -> None:
    """It could never be ended, if it never becomes known."""
    cluster = ReplicationCluster()
    cluster.members[0].decisions.unknown.add(A)
    answers = cluster.write(0, A, b"x")
    assert refused(answers) == "replica_not_available"
    cluster.members[0].decisions.unknown.clear()
    assert offset_of_settled(cluster, cluster.write(0, A, b"x")) == 0


def offset_of_settled(cluster: ReplicationCluster, answers: list[object]) -> int:
    cluster.settle()
    return offset_of(answers)


def test_without_decisions_there_are_no_transactions() -> None:
    cluster = ReplicationCluster()
    driver = cluster.members[0].manager.drivers[tp(0)]
    leader = driver.replica.leader
    assert leader is not None
    leader.transactions._verdicts = NoTransactions()
    assert refused(cluster.write(0, A, b"x")) == "unknown_transaction"


def test_open_transactions_of_a_partition_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_transactions, "MAX_OPEN_TRANSACTIONS", 2)
    cluster = ReplicationCluster()
    for one in (A, B):
        cluster.write(0, one, b"x")
    cluster.settle()
    assert refused(cluster.write(0, key(3), b"x")) == "overloaded"
    assert offset_of_settled(cluster, cluster.write(0, A, b"y", sequence=1)) == 2
    cluster.decide(lambda decisions: decisions.abort(B))
    wait(cluster)
    assert offset_of_settled(cluster, cluster.write(0, key(3), b"x")) == 4


def test_a_new_leader_completes_open_transactions() -> None:
    """The previous leader's marker was lost with it: never replicated."""
    cluster = ReplicationCluster(brokers=3)
    cluster.write(0, A, b"x")
    cluster.settle()
    for number in (1, 2):
        cluster.leader_end(number, 0).paused = True
    cluster.decide(lambda decisions: decisions.commit(A, {tp(0): 1}))
    wait(cluster)
    assert markers(cluster) == [(1, "COMMIT", [(1, 0, 1)])]
    assert cluster.members[0].markers == [], "it is not below the high watermark"
    assert fetched(cluster).committed() == []
    cluster.elect(1)
    wait(cluster)
    assert markers(cluster, 1) == [(1, "COMMIT", [(1, 0, 1)])] == markers(cluster, 0)
    assert cluster.members[1].markers == [(tp(0), A)]
    assert read(cluster, 1) == [b"x"]


def test_a_new_leader_repeats_reports_that_were_not_applied() -> None:
    """`kept till below the high watermark`: a report that was lost with its leader is repeated."""
    cluster = ReplicationCluster()
    cluster.write(0, A, b"x")
    cluster.settle()
    cluster.decide(lambda decisions: decisions.commit(A, {tp(0): 1}))
    wait(cluster)
    assert cluster.members[0].markers == [(tp(0), A)]
    cluster.elect(1)
    wait(cluster)
    assert cluster.members[1].markers == [(tp(0), A)]
    cluster.elect(0)
    wait(cluster)
    assert cluster.members[0].markers == [(tp(0), A)] * 2
    assert len(markers(cluster)) == 1


def test_a_commit_without_records_here_is_reported_without_a_marker() -> None:
    cluster = ReplicationCluster()
    cluster.decide(lambda decisions: decisions.commit(A, {tp(0): 0}))
    cluster.members[0].manager.on_transactions([tp(0)])
    wait(cluster)
    assert cluster.members[0].markers == [(tp(0), A)]
    assert markers(cluster) == []


def test_acknowledged_means_below_the_high_watermark_also_for_a_resend() -> None:
    """`acks (duplicates' too) below high watermark`."""
    cluster = ReplicationCluster()
    cluster.leader_end(1, 0).paused = True
    first = cluster.write(0, A, b"x")
    cluster.settle()
    again = cluster.write(0, A, b"x")
    cluster.settle()
    assert (first, again) == ([], [])
    cluster.leader_end(1, 0).resume()
    cluster.settle()
    assert (offset_of(first), offset_of(again)) == (0, 0)
    assert cluster.log_end(0) == (1, 1)


def test_an_overdue_transaction_is_reported_repeatedly() -> None:
    cluster = ReplicationCluster()
    cluster.members[0].decisions.timeout = 5_000
    cluster.write(0, A, b"x")
    wait(cluster)
    cluster.scheduler.advance(4.5)
    assert cluster.members[0].overdue == []
    cluster.scheduler.advance(1.5)
    assert cluster.members[0].overdue == [A]
    cluster.scheduler.advance(9.0)
    assert cluster.members[0].overdue == [A]
    cluster.scheduler.advance(2.0)
    assert cluster.members[0].overdue == [A, A]
    cluster.decide(lambda decisions: decisions.abort(A))
    wait(cluster)
    cluster.scheduler.advance(30.0)
    assert cluster.members[0].overdue == [A, A]
    assert cluster.members[0].manager.drivers[tp(0)].quiet


def test_open_transactions_are_listed_only_by_the_leader() -> None:
    cluster = ReplicationCluster(2)
    cluster.write(0, A, b"x", partition=1)
    wait(cluster)
    began = cluster.scheduler.clock.monotonic()
    cluster.write(0, B, b"x", partition=0)
    wait(cluster, 1.0)
    open_at_0, open_at_1 = sorted(cluster.members[0].manager.transactions.open_transactions(10), key=str, reverse=True)
    assert (open_at_0.key, open_at_0.topic_partition, open_at_0.first_offset) == (B, tp(0), 0)
    assert (open_at_1.key, open_at_1.topic_partition, open_at_1.first_offset) == (A, tp(1), 0)
    assert open_at_0.since is not None and began <= open_at_0.since <= began + 0.7
    assert len(cluster.members[0].manager.transactions.open_transactions(1)) == 1
    assert cluster.members[1].manager.transactions.open_transactions(10) == []
    cluster.elect(1, partition=0)
    wait(cluster, 1.0)
    (taken_over,) = cluster.members[1].manager.transactions.open_transactions(10)
    assert (taken_over.key, taken_over.since) == (B, None), "since when is not known any more"
    assert taken_over.seen_since is not None and began < taken_over.seen_since, "but since when it is seen here"


def test_below_the_minimum_markers_wait() -> None:
    cluster = ReplicationCluster()
    cluster.write(0, A, b"x")
    cluster.settle()
    cluster.set_isr(0)
    cluster.decide(lambda decisions: decisions.abort(A))
    wait(cluster, 3.0)
    assert markers(cluster) == []
    cluster.set_isr(0, 1)
    wait(cluster, 3.0)
    assert len(markers(cluster)) == 1


def test_a_read_committed_long_poll_is_answered_when_the_marker_is_there() -> None:
    cluster = ReplicationCluster()
    cluster.write(0, A, b"x")
    cluster.settle()
    poll = cluster.fetch(0, 0, isolation=1, wait_ms=5_000)
    beyond = cluster.fetch(0, 1, isolation=1, wait_ms=5_000)
    cluster.settle()
    assert poll.answers is None
    assert beyond.answers is None, "between the last stable offset and the high watermark there is nothing to be had"
    cluster.decide(lambda decisions: decisions.commit(A, {tp(0): 1}))
    wait(cluster)
    assert poll.committed() == [b"x"]
    assert beyond.records == 0


def test_offsets_end_at_the_last_stable_one_for_read_committed() -> None:
    cluster = ReplicationCluster()
    cluster.produce(0, timestamp=500)
    cluster.write(0, A, b"x")
    cluster.settle()
    found: list[FoundOffset] = []
    manager = cluster.members[0].manager
    for time, isolation in ((TIMESTAMP_LATEST, 0), (TIMESTAMP_LATEST, 1), (1_000, 0), (1_000, 1)):
        manager.find_offset(tp(0), time, found.append, isolation=isolation)
        cluster.settle()
    assert [one.offset for one in found] == [2, 1, 1, -1]


def test_a_time_is_not_found_in_markers() -> None:
    cluster = ReplicationCluster()
    for number in range(6):
        cluster.write(0, key(number), b"x")
        cluster.settle()
        cluster.decide(lambda decisions, number=number: decisions.abort(key(number)))  # type: ignore[misc]
        wait(cluster)
    cluster.produce(0, timestamp=2**40)
    cluster.settle()
    found: list[FoundOffset] = []
    cluster.members[0].manager.find_offset(tp(0), 2**40, found.append)
    cluster.settle()
    assert [(one.offset, one.timestamp_ms) for one in found] == [(12, 2**40)]


def test_nothing_at_or_above_the_last_stable_offset_is_deleted() -> None:
    cluster = ReplicationCluster(**{"retention.bytes": "0", "segment.bytes": "1024"})
    cluster.produce(0, size=900)
    cluster.write(0, A, bytes(900))
    for _ in range(3):
        cluster.produce(0, size=900)
        cluster.settle()
    driver = cluster.members[0].manager.drivers[tp(0)]
    answers: list[object] = []
    driver.delete_records(4, answers.append, 1_000)  # type: ignore[arg-type]
    assert refused(answers) == "offset_out_of_range"
    driver.retain(None)
    cluster.settle()
    assert driver.log.log_start_offset == 1
    cluster.decide(lambda decisions: decisions.abort(A))
    wait(cluster)
    answers.clear()
    driver.delete_records(-1, answers.append, 1_000)  # type: ignore[arg-type]
    cluster.settle()
    assert driver.log.log_start_offset == 6


@pytest.mark.parametrize("clean", [True, False])
def test_a_restarted_replica_knows_open_and_aborted_transactions(clean: bool) -> None:
    cluster = ReplicationCluster()
    cluster.write(0, A, b"a")
    cluster.write(0, B, b"b")
    cluster.settle()
    cluster.decide(lambda decisions: decisions.abort(B))
    wait(cluster)
    closed: list[bool] = []
    if clean:
        cluster.members[1].manager.close(closed.append)
        cluster.settle()
        assert closed == [True]
    disk = cluster.members[1].disk
    for link in cluster.members.pop(1).links.values():
        link.close()
    cluster.settle()
    member = cluster.start(1, disk, clean_shutdown=clean)
    cluster.tell(*cluster.brokers(), cluster.topic, *cluster.records.values(), to=[1])
    cluster.settle()
    driver = member.manager.drivers[tp(0)]
    assert (driver.facts().open_transactions, driver.facts().aborted_ranges) == (((A, 0),), 1)
    cluster.elect(1)
    cluster.decide(lambda decisions: decisions.commit(A, {tp(0): 1}))
    wait(cluster)
    assert read(cluster, 1) == [b"a"]


def test_a_truncated_marker_opens_its_transaction_again() -> None:
    """Broker 0 loses the marker that only it had, and its state returns to that of its log."""
    cluster = ReplicationCluster(brokers=3)
    cluster.write(0, A, b"x")
    cluster.settle()
    for number in (1, 2):
        cluster.leader_end(number, 0).paused = True
    cluster.decide(lambda decisions: decisions.abort(A), to=[0])
    wait(cluster)
    cluster.elect(1)
    cluster.produce(1)
    wait(cluster)
    driver = cluster.members[0].manager.drivers[tp(0)]
    assert markers(cluster) == []
    assert (driver.facts().open_transactions, driver.facts().aborted_ranges) == (((A, 0),), 0)
    assert not driver.log.producers.stale
    cluster.elect(0)
    wait(cluster)
    assert markers(cluster) == [(2, "ABORT", [(1, 0, -1)])]
    assert read(cluster) == [bytes(10)]
