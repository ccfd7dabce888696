"""Compaction and transactions (S13): aborted data goes first, what it said of keys never counts, markers go last."""

from __future__ import annotations

from collections.abc import Sequence

from jepsen_like.simulator.disk import SimDisk
from partitions.compaction_run import CleanedSegment, Finished
from partitions.control_batches import control_of
from partitions.log import PartitionLog
from partitions.producer_state import ProducerStates
from raftlog.model import Acks, Offset
from raftlog.record_batch import ControlKind, RecordBatch, encode_control, parse_header, stamp
from raftlog.transactions import TransactionKey
from tests.support.compacted_cluster import CompactedCluster
from tests.support.compaction import COMPACTED, append_records, records, seal
from tests.support.replication_cluster import tp
from tests.support.storage import PATH, read_batches, settle
from tests.support.transaction_logs import batch_of, key

A, B = key(1), key(2)


class Transactional:
    """A log of keyed records and markers, and the state beside it."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.disk.make_directory("partitions")
        self.states = ProducerStates()
        self.log, _ = PartitionLog.open(self.disk, PATH, COMPACTED, clean_shutdown=False, producers=self.states)

    def _append(self, data: bytes) -> None:
        buffers = stamp(data, self.log.log_end_offset, 0)
        batch = b"".join(buffers)
        header = parse_header(batch)
        self.log.append(header, buffers)
        self.states.append(header, control_of(header, batch))

    def write(self, one: TransactionKey, keys: Sequence[bytes], value: bytes, sequence: int = 0) -> None:
        self._append(batch_of(one, *[value] * len(keys), sequence=sequence, keys=list(keys)))

    def plain(self, name: bytes, value: bytes) -> None:
        append_records(self.log, [(name, value)])

    def end(self, kind: ControlKind, one: TransactionKey, named: int = -1) -> None:
        self._append(encode_control(kind, [(*one, named)], base_timestamp_ms=1_000))

    def stable(self) -> Offset:
        return self.states.transactions.last_stable_offset(self.log.stable_end_offset)

    def compact(self) -> bool:
        plan = self.log.compaction_plan(self.stable(), 10_000)
        if plan is None:
            return False
        run = self.log.compaction_run(plan, 10_000, self.states.transactions.aborted)
        while not isinstance(piece := run.next_piece(), Finished):
            if isinstance(piece, CleanedSegment):
                assert self.log.replace_segment(piece)
        run.clear_away()
        assert self.log.compacted(run, piece.end)
        settle(self.log)
        return True

    def shape(self) -> list[str]:
        """Each batch: a marker, or how many records it has."""
        found = []
        for data in read_batches(self.log, self.log.log_start_offset):
            header = RecordBatch(data).header
            found.append("marker" if header.is_control else f"{header.record_count}/{header.last_offset_delta + 1}")
        return found

    def reopened(self) -> ProducerStates:
        """The state that somebody has who reads the log from its beginning."""
        states = ProducerStates()
        for data in read_batches(self.log, Offset(0)):
            header = parse_header(data)
            states.replay(header, control_of(header, data))
        return states


def test_an_aborted_record_does_not_take_away_an_older_one_of_its_key() -> None:
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


def test_what_a_commit_did_not_mean_goes_and_what_it_meant_counts() -> None:
    log = Transactional()
    log.plain(b"k", b"old")
    log.write(A, [b"k"], b"new")
    log.write(A, [b"k"], b"late", sequence=1)
    log.end(ControlKind.COMMIT, A, named=2)
    seal(log.log)
    log.compact()
    assert records(log.log) == [(1, b"k", b"new")]


def test_nothing_of_an_open_transaction_is_touched_nor_what_lies_behind_it() -> None:
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


def test_a_marker_goes_in_a_pass_that_finds_nothing_left_of_what_it_ended() -> None:
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


def test_what_is_left_of_a_transaction_keeps_its_marker() -> None:
    """Without it whoever has nothing but the log would find the transaction open."""
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


def test_a_broker_compacts_what_is_aborted_and_forgets_the_ranges() -> None:
    cluster = CompactedCluster(brokers=2)
    cluster.write(0, A, bytes(500), keys=[b"k"])
    cluster.settle()
    cluster.decide(lambda decisions: decisions.abort(A))
    for _ in range(3):
        cluster.scheduler.advance(0.2)
        cluster.settle()
    cluster.fill(60)
    transactions = [m.manager.drivers[tp(0)]._producers.transactions for m in cluster.members.values()]
    assert [len(one.aborted) for one in transactions] == [1, 1]
    assert cluster.compact(0)
    assert [len(one.aborted) for one in transactions] == [0, 1]
    assert not any(key == b"k" for _, key, _ in records(cluster.log(0)))
    assert cluster.produce(0, acks=Acks.ALL) is not None
