"""Batches of a backup at their leader: appended at their own offsets, and replicated as usual (S1-S4)."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog.errors import RaftlogError
from raftlog.model import Acks, Offset, ProducerEpoch, ProducerId, TopicRecord
from raftlog.records.batch import encode, encode_control, parse_header, stamp
from raftlog.records.batch_filter import hole
from raftlog.records.header import Codec
from raftlog.transactions import TransactionKey
from tests.support.backups import LOG, batch, marker
from tests.support.partitions.replication_cluster import TOPIC, ReplicationCluster, tp
from tests.support.partitions.storage import read_batches


class RestoringCluster(ReplicationCluster):
    """A cluster whose topic is being restored; ids below 100 are reserved."""

    def __init__(self, restoring: str = "100", **configs: str) -> None:
        super().__init__(restoring=restoring, **configs)

    def restore(self, data: bytes, *, number: int = 0) -> Any:
        """Send a batch of a backup. Returns its base offset, or the error's code."""
        answers: list[Any] = []
        self.members[number].manager.produce(tp(0), data, Acks.ALL, answers.append, restored=True)
        self.settle()
        (answer,) = answers
        return answer.code if isinstance(answer, RaftlogError) else answer.base_offset

    def finish(self) -> None:
        """Make the topic an ordinary one."""
        self.topic = TopicRecord(TOPIC, "orders", 1, len(self.replicas), ())
        self.tell(self.topic)
        self.settle()

    def content(self, number: int = 0) -> list[bytes]:
        """The batches of a member's log, as they are there."""
        driver = self.members[number].manager.driver(tp(0))
        assert driver is not None
        return read_batches(driver.log, driver.log.log_start_offset)


def with_epoch(data: bytes, epoch: int) -> bytes:
    return b"".join(stamp(data, parse_header(data).base_offset, epoch))


def test_a_log_with_holes_and_markers_is_restored_on_every_replica_s2_s4() -> None:
    cluster = RestoringCluster()
    assert [cluster.restore(one) for one in LOG] == [0, 3, 7, 9, 10]
    expected = [with_epoch(one, 1) for one in LOG]
    assert cluster.content(0) == cluster.content(1) == expected, "only the leader epoch is the new leader's"


def test_a_batch_is_appended_only_at_the_end_of_the_log() -> None:
    cluster = RestoringCluster()
    assert cluster.restore(LOG[1]) == "offset_out_of_range"
    assert cluster.restore(LOG[0]) == 0
    assert cluster.restore(LOG[0]) == "offset_out_of_range", "it is there already"
    assert cluster.restore(LOG[2]) == "offset_out_of_range"
    assert cluster.restore(LOG[1]) == 3
    assert len(cluster.content()) == 2


def test_producers_wait_until_the_topic_is_restored() -> None:
    cluster = RestoringCluster()
    answers = cluster.produce(0)
    cluster.settle()
    (refused,) = answers
    assert (refused.code, refused.retriable) == ("topic_restoring", True)
    assert cluster.restore(LOG[0]) == 0
    cluster.finish()
    assert cluster.restore(LOG[1]) == "invalid_request"
    answers = cluster.produce(0)
    cluster.settle()
    assert answers[0].base_offset == 3


def test_an_idempotent_producer_goes_on_where_it_was_s1() -> None:
    cluster = RestoringCluster()
    for number in range(3):
        assert cluster.restore(batch(3 * number, producer=5, sequence=3 * number)) == 3 * number
    cluster.finish()

    def send(sequence: int) -> Any:
        answers: list[Any] = []
        data = encode([b"x"] * 3, base_timestamp_ms=1, producer_id=5, producer_epoch=0, base_sequence=sequence)
        cluster.members[0].manager.produce(tp(0), data, Acks.ALL, answers.append)
        cluster.settle()
        cluster.scheduler.advance(5)
        cluster.settle()
        return answers[0].code if isinstance(answers[0], RaftlogError) else answers[0].base_offset

    assert send(6) == 6, "a duplicate"
    assert send(12) == "out_of_order_sequence"
    assert send(9) == 9


def test_a_new_leader_goes_on() -> None:
    cluster = RestoringCluster()
    cluster.restore(LOG[0])
    cluster.elect(1)
    cluster.settle()
    assert cluster.restore(LOG[1]) == "not_leader"
    assert cluster.restore(LOG[1], number=1) == 3
    assert [parse_header(one).leader_epoch for one in cluster.content(1)] == [1, 2]


def test_nothing_is_decided_about_transactions_until_the_end_s13() -> None:
    cluster = RestoringCluster()
    open_batch = encode(
        [b"a"], base_timestamp_ms=1, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True
    )
    assert cluster.restore(open_batch) == 0
    cluster.decide(lambda decisions: decisions.abort(TransactionKey(ProducerId(7), ProducerEpoch(0))))
    cluster.scheduler.advance(60)
    cluster.settle()
    assert len(cluster.content()) == 1, "no marker comes between the batches of a backup"
    cluster.finish()
    cluster.scheduler.advance(60)
    cluster.settle()
    header = parse_header(cluster.content()[-1])
    assert header.is_control and header.base_offset == 1, "what is open at the end is aborted"


def test_nothing_expires_while_it_is_restored() -> None:
    cluster = RestoringCluster(**{"retention.ms": "1", "segment.bytes": "1024"})
    for number in range(20):
        assert cluster.restore(batch(3 * number)) == 3 * number
    cluster.scheduler.advance(120)
    cluster.settle()
    driver = cluster.members[0].manager.driver(tp(0))
    assert driver is not None and driver.log.log_start_offset == 0 and len(cluster.content()) == 20


def test_a_log_may_begin_at_any_offset_s2() -> None:
    """Retention had deleted everything below: holes stand for it, each as long as a batch can be."""
    cluster = RestoringCluster()
    ends = [2**31 - 1, 2**32 - 2, 2**32 + 10]
    for start, end in zip([0, *ends], ends, strict=False):
        assert cluster.restore(hole(start, end, 0, -1, 99)) == start
    assert cluster.restore(batch(ends[-1])) == ends[-1]
    deleted: list[Any] = []
    cluster.members[0].manager.delete_records(tp(0), Offset(ends[-1] + 1), deleted.append, 10_000)
    for _ in range(4):
        cluster.settle()
        cluster.scheduler.advance(0.3)
    assert deleted[0].log_start_offset == ends[-1] + 1
    cluster.finish()
    answers = cluster.produce(0)
    cluster.settle()
    assert answers[0].base_offset == ends[-1] + 3
    for number in (0, 1):
        driver = cluster.members[number].manager.driver(tp(0))
        assert driver is not None and driver.log.log_start_offset == ends[-1] + 1
        assert [parse_header(one).base_offset for one in cluster.content(number)] == [ends[-1], ends[-1] + 3]


HOSTILE = {
    "a flipped bit": LOG[0][:-1] + bytes([LOG[0][-1] ^ 1]),
    "cut": LOG[0][:-1],
    "nothing": b"",
    "no batch": b"x" * 100,
    "a producer id that is not reserved": batch(0, producer=100),
    "a marker of an id that is not reserved": marker(0, 100),
    "a hole up to an id that is not reserved": hole(0, 5, 0, -1, 100),
    "a hole up to an idempotency key": hole(0, 5, 0, -1, 2**62),
    "a marker of an unknown kind": b"".join(stamp(encode_control(9, [], base_timestamp_ms=1), 0, 0)),
    "too large": encode([bytes(1_100_000)], base_timestamp_ms=1),
    "a bomb": encode([bytes(20_000_000)], base_timestamp_ms=1, codec=Codec.ZSTD),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_batch_changes_nothing_s11(data: bytes) -> None:
    cluster = RestoringCluster()
    assert cluster.restore(data) in {"corrupt_batch", "invalid_request", "batch_too_large"}
    assert cluster.content() == []
    assert cluster.restore(LOG[0]) == 0, "the replica is alive"
