"""Idempotency keys in a partition's state: a retry is found, another body refused; producers are untouched (S1)."""

from __future__ import annotations

from partitions.producers.entries import BATCH_BYTES, DROPPED_BEYOND, PRODUCER_BYTES
from partitions.producers.state import (
    IN_SEQUENCE,
    Duplicate,
    NoRoom,
    ProducerBounds,
    ProducerStates,
    RefusedSequence,
    Verdict,
)
from raftlog.model import FIRST_KEYED_ID, NO_PRODUCER_ID
from tests.support.partitions.replication_cores import header

ONE = PRODUCER_BYTES + BATCH_BYTES
HOUR = 3600.0


class Partition:
    """A state with room for some keys, and as many producers."""

    def __init__(self, *, room: int = 100) -> None:
        self.states = ProducerStates(ProducerBounds(room * ONE, int(24 * HOUR * 1000)))
        self.states.advance(0.0)
        self.end = 0

    def append(self, key: int, body: int = 5, count: int = 1) -> None:
        producer = (FIRST_KEYED_ID + key, 0, body)
        self.states.append(header(count, base_offset=self.end, producer=producer))
        self.end += count

    def sent(self, key: int, body: int = 5, count: int = 1, *, resent: bool = False) -> Verdict:
        producer = (FIRST_KEYED_ID + key, 0, body)
        return self.states.check(header(count, producer=producer), resent=resent)


def test_a_retry_gets_its_offset_and_another_body_is_refused() -> None:
    partition = Partition()
    assert partition.sent(1) == IN_SEQUENCE
    partition.append(0)
    partition.append(1, count=3)
    again = partition.sent(1, count=3)
    assert isinstance(again, Duplicate) and again.batch.base_offset == 1
    for other in (partition.sent(1, body=6, count=3), partition.sent(1, count=2), partition.sent(1, body=8)):
        assert isinstance(other, RefusedSequence) and other.code == "idempotency_key_reused"
    assert partition.sent(2, resent=True) == IN_SEQUENCE


def test_a_body_whose_hash_wraps_is_like_any_other() -> None:
    partition = Partition()
    partition.append(1, body=2**31 - 1, count=5)
    assert isinstance(partition.sent(1, body=2**31 - 1, count=5), Duplicate)


def test_a_key_is_no_transaction_and_has_one_epoch() -> None:
    states = Partition().states
    for producer in ((FIRST_KEYED_ID, 1, 5), (FIRST_KEYED_ID, 0, -1)):
        refused = states.check(header(producer=producer))
        assert isinstance(refused, RefusedSequence) and refused.code == "invalid_request"


def test_a_key_expires_after_its_time_in_service() -> None:
    partition = Partition()
    partition.append(1)
    partition.states.advance(12 * HOUR)
    partition.append(2)
    partition.states.advance(24 * HOUR)
    assert partition.sent(1) == IN_SEQUENCE
    assert isinstance(partition.sent(2), Duplicate)
    assert partition.states.forgotten_up_to == NO_PRODUCER_ID, "keys do not concern the horizon of producers"
    assert partition.states.greatest_id == NO_PRODUCER_ID


def test_keys_and_producers_never_take_each_others_room() -> None:
    partition = Partition(room=2)
    for key in range(2):
        partition.append(key)
    assert isinstance(partition.sent(2), NoRoom)
    assert isinstance(partition.sent(1), Duplicate), "a known one needs no room"
    assert partition.states.check(header(producer=(7, 0, 0))) == IN_SEQUENCE
    for producer in (7, 8):
        partition.states.append(header(base_offset=partition.end, producer=(producer, 0, 0)))
    assert isinstance(partition.states.check(header(producer=(9, 0, 0))), NoRoom)
    for key in range(2, 20):  # Keys that a leader accepted are kept up to a multiple of the bound.
        partition.append(key)
    assert partition.states.size_bytes <= (DROPPED_BEYOND + 1) * 2 * ONE
    assert isinstance(partition.sent(19), Duplicate) and partition.states.get(FIRST_KEYED_ID) is None  # type: ignore[arg-type]


def test_keys_survive_in_a_snapshot_and_in_the_log() -> None:
    partition = Partition()
    partition.append(1)
    partition.states.append(header(base_offset=1, producer=(7, 0, 0)))
    restored = partition.states.empty()
    restored.restore(partition.states.snapshot())
    assert restored == partition.states and len(restored) == 2
    again = restored.check(header(producer=(FIRST_KEYED_ID + 1, 0, 5)))
    assert isinstance(again, Duplicate)
    replayed = partition.states.empty()
    replayed.restore(None)
    replayed.replay(header(base_offset=0, producer=(FIRST_KEYED_ID + 1, 0, 5)))
    replayed.replay(header(base_offset=1, producer=(7, 0, 0)))
    assert replayed == partition.states
    other = partition.states.empty()
    other.become(restored)
    assert other == partition.states != partition.states.empty()


def test_a_restored_state_keeps_the_ages_of_keys() -> None:
    partition = Partition()
    partition.states.advance(10 * HOUR)
    partition.append(1)
    restored = partition.states.empty()
    restored.restore(partition.states.snapshot())
    restored.advance(0.0)
    restored.advance(23 * HOUR)
    assert len(restored) == 1
    restored.advance(24 * HOUR)
    assert len(restored) == 0
