"""The transactions of one partition, derived from its log (S13): open ones, aborted ones, and the last
stable offset.
"""

from __future__ import annotations

import pytest

from partitions.producers import aborted_ranges
from partitions.producers import transactions as transaction_state
from partitions.producers.aborted_ranges import AbortedRanges
from partitions.producers.entries import BATCH_BYTES, PRODUCER_BYTES
from partitions.producers.state import ProducerBounds, ProducerStates
from partitions.producers.transactions import TransactionState
from raftlog.model import EVERY_PRODUCER_ID, NO_PRODUCER_ID, Offset
from raftlog.records.batch import Control, ControlKind
from raftlog.transactions import TransactionKey
from raftlog.wire import AbortedRange
from tests.support.partitions.transaction_logs import aborts, commits, data_header, key, marker_header, says

A, B, C = key(1), key(2), key(3)


class Log:
    """Feeds a state with batches."""

    def __init__(self) -> None:
        self.state = TransactionState()
        self.end = 0

    def data(self, one: TransactionKey | None, count: int = 1) -> None:
        self.state.append(data_header(self.end, one, count), None)
        self.end += count

    def marker(self, control: Control) -> None:
        self.state.append(marker_header(self.end), control)
        self.end += 1

    def stable(self, high_watermark: int | None = None) -> int:
        return self.state.last_stable_offset(Offset(self.end if high_watermark is None else high_watermark))

    def ranges(self, start: int = 0, end: int | None = None) -> list[tuple[int, int, int, int]]:
        found = self.state.aborted.overlapping(Offset(start), Offset(self.end if end is None else end))
        return [(one.producer_id, one.producer_epoch, one.first_offset, one.end_offset) for one in found]


def test_an_open_transaction_holds_the_last_stable_offset_at_its_first_record() -> None:
    log = Log()
    log.data(None, 3)
    assert log.stable() == 3
    log.data(A)
    log.data(B, 2)
    assert log.stable() == 3
    log.marker(commits((A, 4)))
    assert log.stable() == 4, "B is open from there on"
    log.marker(aborts(B))
    assert (log.stable(), log.ranges()) == (8, [(2, 0, 4, 7)])


def test_a_marker_counts_when_it_is_below_the_high_watermark() -> None:
    log = Log()
    log.data(A, 2)
    log.data(None)
    log.marker(aborts(A))
    assert [log.stable(high) for high in (1, 2, 3)] == [0, 0, 0], "it may be lost with its leader"
    assert log.stable(4) == 4


def test_a_commit_excludes_records_behind_its_named_offset() -> None:
    log = Log()
    log.data(A, 2)
    log.data(A, 2)
    log.marker(commits((A, 2)))
    assert log.ranges() == [(1, 0, 2, 4)]
    log.data(A)
    assert log.stable() == 5, "a write after the marker opens it again"
    log.marker(commits((A, 2)))
    assert log.ranges() == [(1, 0, 2, 4), (1, 0, 5, 6)]


def test_epochs_of_one_producer_are_different_transactions() -> None:
    """V3: the marker of epoch 0, behind a batch of epoch 1, does not end that one."""
    log = Log()
    log.data(key(7, 0))
    log.data(key(7, 1))
    log.marker(commits((key(7, 0), 1)))
    assert log.stable() == 1
    log.marker(aborts(key(7, 1)))
    assert log.ranges() == [(7, 1, 1, 3)]


def test_one_marker_ends_many_transactions_and_an_unknown_kind_none() -> None:
    log = Log()
    for one in (A, B, C):
        log.data(one)
    log.marker(says(9, (A, -1)))  # type: ignore[arg-type]
    log.marker(aborts(key(99)))
    assert log.stable() == 0
    log.marker(aborts(B, A, C))
    assert log.stable() == 6
    assert log.ranges() == [(2, 0, 1, 5), (1, 0, 0, 5), (3, 0, 2, 5)]


def test_ranges_are_found_by_both_bounds() -> None:
    log = Log()
    log.data(A)  # 0, aborted at 8
    for number in range(10, 13):
        log.data(key(number))
        log.marker(aborts(key(number)))
    log.data(None)
    log.marker(aborts(A))
    log.data(B)
    log.marker(aborts(B))
    assert log.ranges(0, 1) == [(1, 0, 0, 8)]
    assert log.ranges(3, 4) == [(11, 0, 3, 4), (1, 0, 0, 8)]
    assert log.ranges(8, 9) == [], "the marker itself is no record"
    assert log.ranges(9, 10) == [(2, 0, 9, 10)]
    assert log.state.aborted.covers(key(11), 3)
    assert not log.state.aborted.covers(key(11), 1)
    assert log.state.aborted.covers(A, 0)


def test_ranges_in_use_stay_when_the_log_is_truncated() -> None:
    log = Log()
    for one in (A, B):
        log.data(one)
        log.marker(aborts(one))
    held = log.state.aborted
    log.state.cut(Offset(2))
    assert log.ranges(2) == [(2, 0, 2, 3)]
    assert held.overlapping(Offset(0), Offset(2)) == [AbortedRange(1, 0, 0, 1)]
    log.state.forget_compacted(Offset(4))
    assert (log.ranges(), len(log.state.aborted), len(held)) == ([], 0, 2)


@pytest.mark.parametrize("block", [1, 2, 3, 256])
def test_many_ranges_under_one_that_was_open_for_long(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """The same ranges in blocks of any size, whole, truncated, and from a snapshot; found without searching each of
    them."""
    monkeypatch.setattr(aborted_ranges, "_BLOCK", block)
    log = Log()
    log.data(A)
    for number in range(10, 40):
        log.data(key(number))
        log.marker(aborts(key(number)))
    log.marker(aborts(A))
    expected = [(number, 0, 2 * number - 19, 2 * number - 18) for number in range(10, 40)]
    everything = [*expected, (1, 0, 0, 61)]
    again = AbortedRanges.decode(log.state.aborted.encode())
    for start in range(0, 62, 7):
        for end in range(start + 1, 63, 5):
            found = [(one[0], one[1], one[2], one[3]) for one in everything if one[2] < end and one[3] > start]
            assert log.ranges(start, end) == found
            for other in (again, log.state.aborted.copy(), log.state.aborted.behind(Offset(start))):
                assert other.overlapping(Offset(start), Offset(end)) == [AbortedRange(*one) for one in found]
    assert len(log.state.aborted.overlapping(Offset(0), Offset(1))) == 1, "A's alone begins there"


def test_a_transaction_wholly_below_the_log_start_is_dropped() -> None:
    log = Log()
    log.data(A, 2)
    log.data(B, 4)
    log.data(C)
    assert log.state.cut(Offset(4)) == [1]
    assert (log.stable(), list(log.state.open_keys())) == (4, [B, C])
    assert log.state.cut(Offset(4)) == []
    assert log.state.cut(Offset(7)) == [2, 3]
    assert log.state.first_open_offset is None


def test_a_log_start_may_lie_within_several_open_transactions() -> None:
    log = Log()
    for one in (A, B, C, A, B):
        log.data(one)
    assert log.state.cut(Offset(3)) == [3]
    assert list(log.state.open_items()) == [(A, 3), (B, 3)]
    assert log.state.cut(Offset(4)) == [1]
    assert list(log.state.open_items()) == [(B, 4)]


def test_many_markers_above_the_high_watermark_are_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_state, "ENDED_MAX", 3)
    log = Log()
    for number in range(10):
        log.data(key(number))
        log.marker(commits((key(number), log.end)))
    assert log.stable(4) == 0, "too low, never too high"
    assert log.stable(17) == 16
    assert log.stable(20) == 20


def test_a_snapshot_restores_the_state_and_garbage_is_refused() -> None:
    log = Log()
    log.data(A)
    log.data(B)
    log.marker(aborts(B))
    restored = TransactionState()
    restored.restore(log.state.snapshot())
    assert restored == log.state
    assert restored.last_stable_offset(Offset(2)) == 0
    restored.append(marker_header(3), aborts(A))
    assert [restored.last_stable_offset(Offset(high)) for high in (3, 4)] == [0, 4]
    columns = log.state.aborted.encode()
    for wrong in (columns[:4], [*columns[:4], b"123"], [*columns[:4], columns[4] * 2]):
        with pytest.raises(ValueError, match=r"columns|bytes"):
            AbortedRanges.decode(wrong)


def test_a_producer_expires_only_after_its_transaction_has_ended() -> None:
    """Ids that are good for one transaction evict no producer that writes without transactions."""
    states = ProducerStates(ProducerBounds(max_bytes=ONE_PRODUCER // 2))
    plain = data_header(0, key(9))
    plain.attributes = 0
    states.append(plain)
    states.append(data_header(1, A))
    for number in range(5):
        states.append(data_header(2 + 2 * number, key(50 + number)))
        assert list(states) == [9, 1, 50 + number]
        states.append(marker_header(3 + 2 * number), commits((key(50 + number), 3 + 2 * number)))
    assert list(states) == [9, 1]
    assert states.forgotten_up_to == NO_PRODUCER_ID, "nobody was forgotten who might send again"
    again = states.empty()
    again.restore(states.snapshot())
    assert again == states
    again.append(marker_header(20), says(ControlKind.ABORT, (A, -1)))
    assert list(again) == [9]


def test_the_next_transaction_of_a_producer_keeps_its_sequences() -> None:
    states = ProducerStates()
    states.append(data_header(0, key(7, 0)))
    states.append(data_header(1, key(7, 1)))
    states.append(marker_header(2), commits((key(7, 0), 1)))
    entry = states.get(key(7).producer_id)
    assert entry is not None and (entry.epoch, entry.next_sequence) == (1, 1)
    assert states.check(data_header(3, key(7, 0))) != states.check(data_header(3, key(7, 1), sequence=1))
    states.append(marker_header(3), aborts(key(7, 1)))
    assert states.get(key(7).producer_id) is None


ONE_PRODUCER = PRODUCER_BYTES + BATCH_BYTES
SNAPSHOT_1 = bytes.fromhex("92019193 07 02 92 9500020003ce000186a0 95030303 04 ff".replace(" ", ""))
SNAPSHOT_2 = bytes.fromhex(
    (
        "93 02 91 93 01 00 91 95 00 00 00 01 00"
        "93 91 94 01 00 00 01  91 92 02 01"
        "95 c408 0200000000000000 c402 0000 c408 0100000000000000 c408 0200000000000000 c408 0000000000000000"
    ).replace(" ", "")
)


SNAPSHOT_3 = bytes.fromhex(
    (
        "96 03 91 95 01 00 91 95 00 00 00 01 00 00 c3"
        "93 91 94 01 00 00 01  91 92 02 01"
        "95 c408 0200000000000000 c402 0000 c408 0100000000000000 c408 0200000000000000 c408 0000000000000000"
        "cd1388 02 ff"
    ).replace(" ", "")
)


def test_snapshots_on_disk_stay_readable() -> None:
    """Bytes of all versions: the first had producers only, the second no horizon."""
    before = ProducerStates()
    before.restore(SNAPSHOT_1)
    entry = before.get(key(7).producer_id)
    assert entry is not None and entry.epoch == 2
    assert [batch.base_offset for batch in entry.batches] == [0, 3]
    assert before.transactions == TransactionState()
    log = ProducerStates()
    log.append(data_header(0, A))
    log.append(data_header(1, B))
    log.append(marker_header(2), aborts(B))
    assert list(log) == [1]
    again = ProducerStates()
    again.restore(SNAPSHOT_2)
    assert again == log
    assert again.forgotten_up_to == EVERY_PRODUCER_ID, "what it does not know may have been forgotten"
    log.advance(1.0)
    log.advance(6.0)
    assert log.snapshot().hex() == SNAPSHOT_3.hex()
    again.restore(SNAPSHOT_3)
    assert again == log
    assert (again.forgotten_up_to, again.greatest_id) == (NO_PRODUCER_ID, 2)
