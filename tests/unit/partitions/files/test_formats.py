"""The small files: they survive encoding, and any changed byte is detected."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from partitions.files.checkpoint import (
    DamagedFile,
    Kind,
    LogCheckpoint,
    ProducerSnapshot,
    decode_leader_epochs,
    encode_leader_epochs,
    unwrap,
    wrap,
)
from partitions.files.leader_epochs import EpochStart, LeaderEpochHistory
from partitions.files.offset_index import OffsetIndex
from partitions.files.segment import SegmentIndex, parse_segment_name, segment_name
from partitions.files.time_index import TimeIndex
from raftlog.model import LeaderEpoch, Offset
from tests.support.partitions.storage import batch


def index() -> SegmentIndex:
    made = SegmentIndex.empty(Offset(100), 200)
    offset = 100
    for number in range(20):
        one = batch(offset, count=3, time=1000 + 37 * (number % 5))
        made.add(one.header)
        offset = one.end_offset
    return made


EPOCHS = tuple(EpochStart(LeaderEpoch(e), Offset(s)) for e, s in ((0, 5), (3, 9), (4, 100)))

FILES: dict[str, tuple[bytes, Callable[[bytes], object]]] = {
    "checkpoint": (LogCheckpoint(Offset(3), Offset(2**62), True, True).encode(), LogCheckpoint.decode),
    "emptying": (LogCheckpoint(Offset(3), Offset(3), False, False, True).encode(), LogCheckpoint.decode),
    "epochs": (encode_leader_epochs(EPOCHS), decode_leader_epochs),
    "no epochs": (encode_leader_epochs(()), decode_leader_epochs),
    "snapshot": (ProducerSnapshot(Offset(7), LeaderEpoch(2), b"state").encode(), ProducerSnapshot.decode),
    "offset index": (index().offsets.encode(), lambda content: OffsetIndex.decode(content, 200)),
    "time index": (index().times.encode(), TimeIndex.decode),
}


def test_a_file_survives_encoding() -> None:
    checkpoint = LogCheckpoint(Offset(3), Offset(9), False, True)
    assert LogCheckpoint.decode(checkpoint.encode()) == checkpoint
    assert decode_leader_epochs(encode_leader_epochs(EPOCHS)).entries == EPOCHS
    snapshot = ProducerSnapshot(Offset(7), LeaderEpoch(-1), b"")
    assert ProducerSnapshot.decode(snapshot.encode()) == snapshot
    made = index()
    again = SegmentIndex.decode(Offset(100), made.offsets.encode(), made.times.encode(), 200)
    assert (again.end_offset, again.size) == (160, made.size)
    assert again.times.max_timestamp == made.times.max_timestamp == 1150
    for offset in range(90, 170):
        assert again.offsets.floor(Offset(offset)) == made.offsets.floor(Offset(offset))


@pytest.mark.parametrize("name", FILES)
def test_every_changed_byte_and_every_other_length_is_detected(name: str) -> None:
    content, decode = FILES[name]
    decode(content)
    for position in range(len(content)):
        for mask in (1, 0x80):
            changed = bytearray(content)
            changed[position] ^= mask
            with pytest.raises(DamagedFile):
                decode(bytes(changed))
    for length in [*range(len(content)), len(content) + 1]:
        with pytest.raises(DamagedFile):
            decode(content.ljust(length, b"\0")[:length])


@pytest.mark.parametrize("name", FILES)
def test_one_kind_is_not_accepted_as_another(name: str) -> None:
    content, _ = FILES[name]
    for other, (_, decode) in FILES.items():
        if FILES[name][0][4:6] != FILES[other][0][4:6]:
            with pytest.raises(DamagedFile):
                decode(content)


def test_nonsense_with_a_good_crc_is_refused() -> None:
    made = index()
    nonsense: list[tuple[bytes, Callable[[bytes], object]]] = [
        (wrap(Kind.CHECKPOINT, b"\0" * 16), LogCheckpoint.decode),
        (LogCheckpoint(Offset(9), Offset(3), True).encode(), LogCheckpoint.decode),
        (wrap(Kind.CHECKPOINT, b"\0" * 16 + b"\x08"), LogCheckpoint.decode),
        (encode_leader_epochs((EPOCHS[1], EPOCHS[0])), decode_leader_epochs),
        (encode_leader_epochs((EPOCHS[0], EPOCHS[0])), decode_leader_epochs),
        (wrap(Kind.LEADER_EPOCHS, b"\0" * 13), decode_leader_epochs),
        (wrap(Kind.PRODUCER_SNAPSHOT, b"\0"), ProducerSnapshot.decode),
        (wrap(Kind.OFFSET_INDEX, b"\0" * 20), lambda content: OffsetIndex.decode(content, 1)),
        (wrap(Kind.TIME_INDEX, b"\0" * 25), TimeIndex.decode),
    ]
    payload = bytearray(unwrap(Kind.OFFSET_INDEX, made.offsets.encode()))
    payload[24:28], payload[28:32] = payload[28:32], payload[24:28]
    nonsense.append((wrap(Kind.OFFSET_INDEX, bytes(payload)), lambda content: OffsetIndex.decode(content, 1)))
    payload = bytearray(unwrap(Kind.TIME_INDEX, made.times.encode()))
    payload[24:32] = b"\x7f" * 8
    nonsense.append((wrap(Kind.TIME_INDEX, bytes(payload)), TimeIndex.decode))
    for content, decode in nonsense:
        with pytest.raises(DamagedFile):
            decode(content)


def test_the_two_indexes_of_a_segment_must_match_each_other_and_the_segment() -> None:
    made, other = index(), SegmentIndex.empty(Offset(100), 200)
    with pytest.raises(DamagedFile):
        SegmentIndex.decode(Offset(100), made.offsets.encode(), other.times.encode(), 200)
    with pytest.raises(DamagedFile):
        SegmentIndex.decode(Offset(0), made.offsets.encode(), made.times.encode(), 200)


def test_names_sort_like_offsets() -> None:
    offsets = [0, 9, 10, 99, 10**15, 2**63 - 1]
    names = [segment_name(Offset(offset)) for offset in offsets]
    assert names == sorted(names)
    assert [parse_segment_name(name) for name in names] == offsets
    for name in ("1.log", "0" * 20, "0" * 20 + ".index", "0" * 19 + "x.log", "٣" * 20 + ".log", "0" * 21 + ".log"):
        assert parse_segment_name(name) is None


# --- Leader epochs ---


def history(*entries: tuple[int, int]) -> LeaderEpochHistory:
    return LeaderEpochHistory(EpochStart(LeaderEpoch(epoch), Offset(start)) for epoch, start in entries)


def test_the_end_of_an_epoch() -> None:
    """KIP-320: the leader's answer to a follower that asks for the end of an epoch."""
    epochs = history((1, 0), (3, 10), (4, 25))
    end = Offset(40)
    answers = {epoch: epochs.end_offset_for(LeaderEpoch(epoch), end) for epoch in range(6)}
    assert answers == {0: (0, 0), 1: (1, 10), 2: (1, 10), 3: (3, 25), 4: (4, 40), 5: (-1, -1)}
    assert history().end_offset_for(LeaderEpoch(0), end) == (-1, -1)


def test_the_epoch_of_an_offset() -> None:
    epochs = history((1, 5), (3, 10))
    assert [epochs.epoch_at(Offset(offset)) for offset in (0, 4, 5, 9, 10, 99)] == [-1, -1, 1, 1, 3, 3]


def test_epochs_never_fall() -> None:
    from raftlog.errors import InvariantViolation

    epochs = history((1, 5), (3, 10))
    assert not epochs.assign(LeaderEpoch(3), Offset(50))
    assert epochs.assign(LeaderEpoch(7), Offset(60))
    for epoch, offset in ((6, 70), (-1, 70), (8, 59)):
        with pytest.raises(InvariantViolation):
            epochs.assign(LeaderEpoch(epoch), Offset(offset))
    assert epochs == history((1, 5), (3, 10), (7, 60))
    for wrong in (((1, 5), (1, 9)), ((3, 5), (1, 9)), ((1, 5), (2, 5)), ((1, 5), (2, 4))):
        with pytest.raises(ValueError, match="rise"):
            history(*wrong)


def test_an_epoch_without_batches_is_removed() -> None:
    epochs = history((1, 0), (3, 10))
    assert epochs.truncate_start(Offset(20))
    assert epochs == history((3, 20)), "the log is empty at 20, and its last epoch was 3"
    assert epochs.assign(LeaderEpoch(5), Offset(20))
    assert epochs == history((5, 20))


def test_truncation_at_either_end() -> None:
    full = ((1, 0), (3, 10), (4, 25))
    for end, left in ((0, ()), (1, full[:1]), (10, full[:1]), (11, full[:2]), (25, full[:2]), (26, full)):
        epochs = history(*full)
        assert epochs.truncate_end(Offset(end)) == (left != full)
        assert epochs == history(*left)
    for start, kept in (
        (0, full),
        (5, ((1, 5), *full[1:])),
        (10, full[1:]),
        (24, ((3, 24), full[2])),
        (90, ((4, 90),)),
    ):
        epochs = history(*full)
        assert epochs.truncate_start(Offset(start)) == (kept != full)
        assert epochs == history(*kept)
