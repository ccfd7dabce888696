"""The stored and the expired state of idempotent producers, and that no resend becomes a second batch (S1)."""

from __future__ import annotations

import pytest

from partitions.producers.entries import BATCH_BYTES, DROPPED_BEYOND, PRODUCER_BYTES
from partitions.producers.state import (
    FORGOTTEN_AT_ONCE,
    IN_SEQUENCE,
    Ahead,
    Duplicate,
    NoRoom,
    ProducerBounds,
    ProducerStates,
    RefusedSequence,
    Verdict,
)
from raftlog.config import NodeConfig
from raftlog.model import EVERY_PRODUCER_ID, NO_PRODUCER_ID, Offset, ProducerId
from raftlog.records.batch import parse_header
from raftlog.records.batch_filter import hole
from tests.support.partitions.replication_cores import CoreDriver, header
from tests.support.partitions.transaction_logs import commits, data_header, key, marker_header

ONE_BATCH = PRODUCER_BYTES + BATCH_BYTES
HOUR = 3600.0


def bounds(*, producers: int = 1000, hours: float = 24) -> ProducerBounds:
    """Room for this number of producers of one batch."""
    return ProducerBounds(producers * ONE_BATCH, int(hours * HOUR * 1000))


class Partition:
    """A state and its log's end. The time of service is in hours."""

    def __init__(self, *, producers: int = 1000) -> None:
        self.states = ProducerStates(bounds(producers=producers))
        self.end = 0
        self.now = 0.0
        self.states.advance(0.0)

    def append(self, producer: int, sequence: int = 0, epoch: int = 0) -> None:
        self.states.append(header(base_offset=self.end, producer=(producer, epoch, sequence)))
        self.end += 1

    def sent(self, producer: int, sequence: int = 0, epoch: int = 0) -> Verdict:
        return self.states.check(header(producer=(producer, epoch, sequence)))

    def resent(self, producer: int, sequence: int = 0, epoch: int = 0) -> Verdict:
        return self.states.check(header(producer=(producer, epoch, sequence)), resent=True)

    def wait(self, hours: float) -> None:
        self.now += hours * HOUR
        self.states.advance(self.now)


def is_refused(verdict: Verdict, code: str = "unknown_producer_id") -> bool:
    return isinstance(verdict, RefusedSequence) and verdict.code == code


# --- Resends --------------------------------------------------------------------------------------------------------


def test_a_known_resend_gets_its_offset() -> None:
    partition = Partition()
    partition.append(7)
    again = partition.resent(7)
    assert isinstance(again, Duplicate) and again.batch.base_offset == 0


def test_a_new_producers_first_batch_is_appended_even_if_it_is_a_resend() -> None:
    """A leader that is killed before it appends is common: its successor knows that the batch is not there."""
    partition = Partition()
    partition.append(7)
    assert partition.resent(8) == IN_SEQUENCE
    assert partition.resent(3) == IN_SEQUENCE, "ids of another broker's block are lower, and nobody was forgotten"


def test_a_resend_of_an_expired_producer_is_not_appended() -> None:
    partition = Partition()
    partition.append(7)
    partition.wait(24)
    assert list(partition.states) == []
    assert is_refused(partition.resent(7))
    assert is_refused(partition.resent(6)), "it may have been forgotten as well"
    assert partition.resent(8) == IN_SEQUENCE, "ids rise: nobody with this one was ever forgotten"
    assert partition.sent(7) == IN_SEQUENCE, "the first attempt of a producer that never wrote here"
    assert isinstance(partition.resent(7, sequence=5), Ahead)


def test_ten_thousand_others_do_not_evict_a_producer() -> None:
    partition = Partition(producers=30_000)
    partition.append(1)
    for other in range(2, 10_002):
        partition.append(other)
    assert isinstance(partition.resent(1), Duplicate)


def test_a_higher_epoch_of_a_continuously_known_producer_begins_even_with_a_resend() -> None:
    partition = Partition()
    partition.append(7)
    assert partition.resent(7, epoch=1) == IN_SEQUENCE


def test_a_resend_with_a_higher_epoch_of_a_producer_that_had_expired_is_not_appended() -> None:
    """Epoch 1 was appended and expired; then an attempt of epoch 0, late, made the producer known again."""
    partition = Partition()
    partition.append(7, epoch=1)
    partition.wait(24)
    partition.append(7, epoch=0)
    assert is_refused(partition.resent(7, epoch=1))
    again = partition.states.empty()
    again.restore(partition.states.snapshot())
    assert is_refused(again.check(header(producer=(7, 1, 0)), resent=True))


def test_a_transaction_begins_whichever_producer_has_expired() -> None:
    """Open transactions never expire, and batches of ended ones are refused: so a resend is not in the log (S13)."""
    partition = Partition()
    partition.append(9)
    partition.wait(24)
    assert partition.states.check(data_header(1, key(7)), resent=True) == IN_SEQUENCE


def test_a_leader_answers_a_resend_whose_outcome_it_cannot_know() -> None:
    core = CoreDriver()
    core.producers.lacks_past(ProducerId(7))
    core.lead()
    core.produce(producer=(7, 0, 0), resent=True)
    assert core.rejected() == [(1, "unknown_producer_id")] and core.log.log_end_offset == 0
    core.produce(producer=(7, 0, 0))
    assert core.log.log_end_offset == 1
    core.produce(producer=(8, 0, 0), resent=True)
    assert core.log.log_end_offset == 2 and len(core.rejected()) == 1


# --- Time -----------------------------------------------------------------------------------------------------------


def test_time_counts_from_the_last_batch() -> None:
    partition = Partition()
    partition.append(7)
    partition.append(8)
    partition.wait(23)
    partition.append(7, sequence=1)
    partition.wait(1)
    assert list(partition.states) == [7]
    partition.wait(22.9)
    assert isinstance(partition.resent(7, sequence=1), Duplicate)
    partition.wait(0.1)
    assert list(partition.states) == []


def test_ages_are_in_snapshots_and_a_stop_adds_nothing_to_them() -> None:
    partition = Partition()
    partition.append(7)
    partition.wait(20)
    again = partition.states.empty()
    again.restore(partition.states.snapshot())
    again.advance(1_000 * HOUR)
    again.advance(1_003 * HOUR)
    assert list(again) == [7]
    again.advance(1_004 * HOUR)
    assert list(again) == [] and again.forgotten_up_to == 7


def test_a_state_that_was_read_again_does_not_age_by_the_time_of_a_stop() -> None:
    """After a truncation the state comes from an old snapshot: batches behind it are young, whatever the time."""
    partition = Partition()
    snapshot = partition.states.snapshot()
    partition.wait(30)
    rebuilt = partition.states.empty()
    rebuilt.restore(snapshot)
    rebuilt.replay(header(base_offset=0, producer=(7, 0, 0)))
    partition.states.become(rebuilt)
    partition.wait(1)
    assert list(partition.states) == [7]


def test_the_horizon_does_not_fall_when_the_state_is_read_again() -> None:
    partition = Partition()
    before = partition.states.snapshot()
    partition.states.lacks_past(ProducerId(40))
    rebuilt = partition.states.empty()
    rebuilt.restore(before)
    partition.states.become(rebuilt)
    assert partition.states.forgotten_up_to == 40


def test_an_open_transaction_never_expires() -> None:
    partition = Partition()
    partition.states.append(data_header(0, key(7)))
    partition.wait(1_000)
    assert isinstance(partition.states.check(data_header(1, key(7)), resent=True), Duplicate)
    partition.states.append(marker_header(1), commits((key(7), 1)))
    assert list(partition.states) == [] and partition.states.forgotten_up_to == NO_PRODUCER_ID


def test_a_clock_that_goes_back_ages_no_producer() -> None:
    partition = Partition()
    partition.append(7)
    for now in (23 * HOUR, 0.0, 0.9 * HOUR):
        partition.states.advance(now)
    assert list(partition.states) == [7]


def test_one_event_expires_a_bounded_number() -> None:
    partition = Partition(producers=FORGOTTEN_AT_ONCE + 10)
    for producer in range(FORGOTTEN_AT_ONCE + 1):
        partition.append(producer)
    partition.wait(25)
    assert list(partition.states) == [FORGOTTEN_AT_ONCE]
    partition.wait(0)
    assert list(partition.states) == [] and partition.states.size_bytes == 0


# --- Room -----------------------------------------------------------------------------------------------------------


def test_new_producers_are_refused_if_all_known_ones_may_still_resend() -> None:
    partition = Partition(producers=3)
    for producer in (1, 2, 3):
        partition.append(producer)
    for verdict in (partition.sent(4), partition.resent(4)):
        assert isinstance(verdict, NoRoom) and "producer_state_bytes" in verdict.detail
    assert partition.sent(1, sequence=1) == IN_SEQUENCE, "who is known goes on"
    assert isinstance(partition.resent(2), Duplicate)
    assert partition.states.check(data_header(9, key(8))) == IN_SEQUENCE, "transactions have a bound of their own"
    partition.wait(24)
    assert partition.sent(4) == IN_SEQUENCE


def test_a_leader_without_room_refuses_and_appends_nothing() -> None:
    core = CoreDriver(producers=ProducerStates(bounds(producers=1)))
    core.lead()
    core.produce(producer=(1, 0, 0))
    core.produce(producer=(2, 0, 0))
    assert core.rejected() == [(2, "overloaded")] and core.log.log_end_offset == 1


def test_a_replica_that_receives_too_many_producers_evicts_the_oldest_and_knows_it() -> None:
    partition = Partition(producers=3)
    for producer in (5, 1, 2, 3, 4, 6, 7):
        partition.append(producer)
    assert list(partition.states) == [1, 2, 3, 4, 6, 7]
    assert partition.states.size_bytes <= DROPPED_BEYOND * 3 * ONE_BATCH
    assert is_refused(partition.resent(5))
    assert isinstance(partition.resent(1), Duplicate)


def test_the_counted_memory_is_the_stored_state() -> None:
    partition = Partition()
    for sequence in range(9):
        partition.append(1, sequence)
    partition.append(2)
    assert partition.states.size_bytes == 2 * PRODUCER_BYTES + 6 * BATCH_BYTES
    again = partition.states.empty()
    again.restore(partition.states.snapshot())
    assert again.size_bytes == partition.states.size_bytes


def test_the_default_has_room_for_the_documented_number() -> None:
    room = NodeConfig().producer_state_bytes
    assert room // ONE_BATCH >= 35_000
    assert room // (PRODUCER_BYTES + 5 * BATCH_BYTES) >= 12_000


# --- Batches that a replica has not seen ----------------------------------------------------------------------------


def test_a_replica_that_began_in_the_middle_appends_no_resend_of_earlier_producers() -> None:
    partition = Partition()
    partition.append(5)
    partition.append(7)
    copy = ProducerStates()
    copy.lacks_past(partition.states.greatest_id)
    assert is_refused(copy.check(header(producer=(5, 0, 0)), resent=True))
    assert copy.check(header(producer=(8, 0, 0)), resent=True) == IN_SEQUENCE


def test_a_replica_that_does_not_know_what_it_lacks_appends_no_resend_of_an_unknown_producer() -> None:
    copy = ProducerStates()
    copy.lacks_past()
    copy.append(header(base_offset=9, producer=(5, 0, 0)))
    assert is_refused(copy.check(header(producer=(2**62 - 1, 0, 0)), resent=True))
    assert isinstance(copy.check(header(producer=(5, 0, 0)), resent=True), Duplicate)
    assert copy.greatest_id == EVERY_PRODUCER_ID, "and says so to whoever begins in the middle of its log"


def test_compacted_batches_are_not_treated_as_never_written() -> None:
    copy = ProducerStates()
    copy.append(parse_header(hole(0, 9, 1, 77, 12)))
    assert is_refused(copy.check(header(producer=(12, 0, 0)), resent=True))
    assert copy.check(header(producer=(13, 0, 0)), resent=True) == IN_SEQUENCE
    copy.append(parse_header(hole(9, 12, 1, 77)))
    assert copy.forgotten_up_to == 12 and len(copy) == 0


@pytest.mark.parametrize("resent", [False, True])
def test_batches_without_a_producer_create_no_state(resent: bool) -> None:
    copy = ProducerStates()
    copy.lacks_past()
    assert copy.check(header(base_offset=Offset(0)), resent=resent) == IN_SEQUENCE
