"""ISR state, follower progress, and the idempotence window."""

from __future__ import annotations

import pytest

from partitions.producers.entries import SEQUENCES, last_sequence
from partitions.producers.state import Ahead, Duplicate, InSequence, ProducerStates, RefusedSequence
from partitions.replica.effects import Fate
from partitions.replica.followers import FollowerProgress
from partitions.replica.isr import IsrState, maximal_isr, members, replicated_end_offset
from raftlog.errors import InvariantViolation
from raftlog.model import BrokerId, Incarnation, Offset, ProducerId
from tests.support.partitions.replication_cores import header, record


def ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, numbers))


def test_the_maximal_isr_contains_the_accepted_and_every_possible_one() -> None:
    state = IsrState.of(record(isr=(0, 1)))
    assert state.maximal == ids(0, 1)
    first = state.propose(ids(0, 2))
    assert state.maximal == ids(0, 1, 2)
    state.on_answer(first, Fate.UNKNOWN, retry_at=1.0)
    assert not state.may_propose(0.5)
    assert state.may_propose(1.0)
    second = state.propose(ids(0, 1, 3))
    state.on_answer(second, Fate.REFUSED, retry_at=2.0)
    assert state.maximal == ids(0, 1, 2), "the refused one is impossible, the lost one is not"
    assert state.unsettled
    state.on_record(record(isr=(0, 2), partition_epoch=2))
    assert state.maximal == ids(0, 2)
    assert not state.unsettled


def test_an_attempt_of_an_older_partition_epoch_is_ignored() -> None:
    state = IsrState.of(record(isr=(0, 1)))
    old = state.propose(ids(0, 1, 2))
    state.on_record(record(isr=(0,), partition_epoch=2))
    new = state.propose(ids(0, 2))
    state.on_answer(old, Fate.REFUSED, retry_at=0.0)
    assert state.maximal == ids(0, 2)
    assert not state.may_propose(9.0)
    state.on_answer(new, Fate.REFUSED, retry_at=0.0)
    assert state.maximal == ids(0)


def test_the_same_proposal_lost_once_and_refused_later_stays_possible() -> None:
    state = IsrState.of(record(isr=(0, 1)))
    state.on_answer(state.propose(ids(0, 1, 2)), Fate.UNKNOWN, retry_at=0.0)
    state.on_answer(state.propose(ids(0, 1, 2)), Fate.REFUSED, retry_at=0.0)
    assert state.maximal == ids(0, 1, 2)


def test_an_accepted_proposal_waits_for_its_record() -> None:
    state = IsrState.of(record(isr=(0, 1)))
    state.on_answer(state.propose(ids(0, 1, 2)), Fate.ACCEPTED, retry_at=0.0)
    assert not state.may_propose(99.0)
    assert not state.unsettled
    assert state.maximal == ids(0, 1, 2)
    with pytest.raises(InvariantViolation):
        state.propose(ids(0))


def test_the_minimum_counts_accepted_members_only() -> None:
    state = IsrState.of(record(isr=(0,), minimum=2))
    state.propose(ids(0, 1))
    assert len(state.maximal) == 2
    assert state.below_minimum


def test_properties_of_the_isr_state() -> None:
    assert members([BrokerId(2), BrokerId(0), BrokerId(2)]) == ids(0, 2)
    assert maximal_isr(ids(1), [ids(0), ids(2, 3)]) == ids(0, 1, 2, 3)
    ends = {0: 5, 1: 3}
    assert replicated_end_offset(ids(0, 1), lambda b: Offset(ends[b])) == 3
    assert replicated_end_offset(ids(0, 1, 2), lambda b: Offset(ends[b]) if b in ends else None) is None


def test_progress_keeps_what_it_needs() -> None:
    progress = FollowerProgress(BrokerId(1), Incarnation(4), 0.0)
    assert str(progress) == "1@4 unmatched"
    assert progress.counted_end_offset is None
    progress.on_report(Offset(5), Offset(3), Offset(9), 1.0)
    assert progress.counted_end_offset == 3
    assert str(progress) == "1@4 stable=3 fetch=5"
    assert progress.caught_up_at == 0.0
    progress.on_report(Offset(9), Offset(9), Offset(12), 2.0)
    assert progress.caught_up_at == 1.0, "it has now what was all there was then"


# --- Producers ---


def states(*batches: tuple[int, int, int, int]) -> ProducerStates:
    """Batches of (producer, epoch, base sequence, records), appended one after the other."""
    found, end = ProducerStates(), 0
    for producer, epoch, sequence, count in batches:
        found.append(header(count, base_offset=end, producer=(producer, epoch, sequence)))
        end += count
    return found


def verdict(found: ProducerStates, producer: int, epoch: int, sequence: int, count: int = 1) -> object:
    return found.check(header(count, producer=(producer, epoch, sequence)))


TABLE = [
    ((-1, -1, -1), InSequence),
    ((9, 0, 0), InSequence),  # unknown, from the beginning
    ((9, 0, 1), Ahead),  # unknown, in the middle
    ((7, 1, 0), RefusedSequence),  # lower epoch
    ((7, 3, 0), InSequence),  # higher epoch, from the beginning
    ((7, 3, 1), Ahead),
    ((7, 2, 6), InSequence),
    ((7, 2, 5), Duplicate),
    ((7, 2, 1), Duplicate),
    ((7, 2, 0), RefusedSequence),  # the sixth last
    ((7, 2, 7), Ahead),
    ((7, -1, 6), RefusedSequence),
    ((7, 2, -1), RefusedSequence),
]


@pytest.mark.parametrize(("batch", "expected"), TABLE)
def test_every_case_of_the_table(batch: tuple[int, int, int], expected: type) -> None:
    found = states(*((7, 2, sequence, 1) for sequence in range(6)))
    assert type(verdict(found, *batch)) is expected


def test_codes_of_refusals() -> None:
    found = states((7, 2, 0, 1))
    assert verdict(found, 7, 1, 0).code == "producer_fenced"
    assert verdict(found, 9, 0, 4).code == "unknown_producer_id"
    assert verdict(found, 7, 2, 4).code == "out_of_order_sequence"


def test_a_duplicate_is_the_same_batch_and_no_other() -> None:
    found = states((7, 0, 0, 3), (7, 0, 3, 2))
    duplicate = verdict(found, 7, 0, 0, 3)
    assert isinstance(duplicate, Duplicate)
    assert (duplicate.batch.base_offset, duplicate.batch.end_offset) == (0, 3)
    assert isinstance(verdict(found, 7, 0, 0, 2), RefusedSequence), "another cut of the same records"
    assert isinstance(verdict(found, 7, 0, 1, 4), RefusedSequence)


def test_sequences_wrap() -> None:
    found = states((7, 0, SEQUENCES - 2, 3))
    assert last_sequence(header(3, producer=(7, 0, SEQUENCES - 2))) == 0
    assert isinstance(verdict(found, 7, 0, 1), InSequence)
    assert isinstance(verdict(found, 7, 0, 2), Ahead)
    assert isinstance(verdict(found, 7, 0, SEQUENCES - 3), RefusedSequence)


def test_snapshots_survive_encoding_and_others_are_refused() -> None:
    found = states((7, 2, 0, 3), (8, 0, 0, 1), (7, 2, 3, 1))
    again = ProducerStates()
    again.restore(found.snapshot())
    assert again == found
    assert again.get(ProducerId(7)) == found.get(ProducerId(7))
    assert str(again) == "8:0@1 7:2@4"
    again.restore(None)
    assert len(again) == 0
    for damaged in (b"", b"\x92\x04\x90", found.snapshot()[:-1], b"\x92\x01\x91\x93\x07\x00\x90"):
        with pytest.raises(ValueError, match="snapshot"):
            again.restore(damaged)
