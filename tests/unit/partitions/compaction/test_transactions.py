"""Compaction and transactions (S13): aborted records are removed first and supersede nothing, markers
are removed last.
"""

from __future__ import annotations

from raftlog.model import Acks
from raftlog.records.batch import ControlKind
from tests.support.clusters.compacted import CompactedCluster
from tests.support.partitions.compaction import records, seal
from tests.support.partitions.replication_cluster import tp
from tests.support.partitions.transaction_logs import key
from tests.support.partitions.transactional_log import Transactional

A, B = key(1), key(2)


def test_an_aborted_record_does_not_remove_an_older_one_of_its_key() -> None:
    log = Transactional()
    log.plain(b"k", b"kept")
    log.write(A, [b"k", b"other"], b"aborted")
    log.end(ControlKind.ABORT, A)
    log.plain(b"last", b"x")
    seal(log.log)
    assert log.compact()
    assert records(log.log) == [(0, b"k", b"kept"), (4, b"last", b"x")]
    assert log.shape() == ["1/1", "0/2", "marker", "1/1"], "the marker stays for what was there"
    assert log.reopened().transactions.open_count == 0


def test_records_beyond_a_commits_end_are_removed_and_those_below_count() -> None:
    log = Transactional()
    log.plain(b"k", b"old")
    log.write(A, [b"k"], b"new")
    log.write(A, [b"k"], b"late", sequence=1)
    log.end(ControlKind.COMMIT, A, named=2)
    seal(log.log)
    log.compact()
    assert records(log.log) == [(1, b"k", b"new")]


def test_open_transactions_and_everything_behind_them_are_not_touched() -> None:
    log = Transactional()
    log.plain(b"k", b"0")
    seal(log.log)
    log.write(A, [b"k"], b"1")
    seal(log.log)
    log.plain(b"k", b"2")
    seal(log.log)
    assert log.stable() == 1
    log.compact()
    assert [offset for offset, _, _ in records(log.log)] == [0, 1, 2]
    log.end(ControlKind.ABORT, A)
    seal(log.log)
    assert log.compact()
    assert records(log.log) == [(2, b"k", b"2")]


def test_a_marker_is_removed_in_a_pass_that_finds_none_of_its_batches() -> None:
    log = Transactional()
    log.write(A, [b"k"], b"1")
    log.end(ControlKind.COMMIT, A, named=1)
    log.plain(b"z", b"1")
    log.write(key(1, 1), [b"k"], b"2")
    log.end(ControlKind.COMMIT, key(1, 1), named=4)
    seal(log.log)
    assert log.compact()
    assert log.shape()[:3] == ["0/1", "marker", "1/1"], "first what it ended"
    log.plain(b"z", b"2")
    seal(log.log)
    assert log.compact()
    assert log.shape() == ["0/3", "1/1", "marker", "1/1"], "then the marker: one hole with what is beside it"
    assert log.reopened().transactions.open_count == 0


def test_a_marker_stays_while_a_batch_of_its_transaction_does() -> None:
    """Without it, a replica that has only the log would consider the transaction open."""
    log = Transactional()
    log.write(A, [b"k", b"stays"], b"1")
    log.end(ControlKind.COMMIT, A, named=2)
    log.plain(b"k", b"2")
    for number in range(3):
        seal(log.log)
        assert log.compact()
        assert log.shape()[:2] == ["1/2", "marker"]
        assert log.reopened().transactions.open_count == 0
        log.plain(b"more", b"%d" % number)


def test_a_broker_compacts_aborted_records_and_drops_their_ranges() -> None:
    cluster = CompactedCluster(brokers=2)
    cluster.write(0, A, bytes(500), keys=[b"k"])
    cluster.settle()
    cluster.decide(lambda decisions: decisions.abort(A))
    for _ in range(3):
        cluster.scheduler.advance(0.2)
        cluster.settle()
    cluster.fill(60)
    drivers = [member.manager.drivers[tp(0)] for member in cluster.members.values()]
    assert [driver.facts().aborted_ranges for driver in drivers] == [1, 1]
    assert cluster.compact(0)
    assert [driver.facts().aborted_ranges for driver in drivers] == [0, 1]
    assert not any(key == b"k" for _, key, _ in records(cluster.log(0)))
    assert cluster.produce(0, acks=Acks.ALL) is not None
