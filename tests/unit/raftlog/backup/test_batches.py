"""Files of batches: what is written is read back, and any damage is found before a batch is used."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.backup.batches import FileBuilder, is_same, read_file
from raftlog.errors import InvalidRequest
from raftlog.records.batch import parse_header, stamp
from tests.support.backups import LOG, batch, file_of


def test_a_file_is_read_back_with_its_holes_markers_and_epochs() -> None:
    file, data, last = file_of(LOG)
    assert (file.base_offset, file.end_offset, file.batches, file.bytes) == (0, 15, len(LOG), len(data))
    assert (file.first_epoch, file.last_epoch) == (0, 2)
    assert last is not None and last.base_offset == 10
    assert [bytes(one) for _, one in read_file(file, data, "it")] == list(LOG)


def test_the_content_does_not_depend_on_leader_epochs() -> None:
    again = [b"".join(stamp(one, parse_header(one).base_offset, 9)) for one in LOG]
    file, other = file_of(LOG)[0], file_of(again)[0]
    assert file.content_sha256 == other.content_sha256 and file.sha256 != other.sha256
    assert all(is_same(one, two) for one, two in zip(LOG, again, strict=True))
    assert not is_same(LOG[0], batch(1))


def test_a_builder_ends_a_file_at_its_limit_and_knows_the_greatest_producer_id() -> None:
    builder = FileBuilder(len(LOG[0]))
    for one in LOG:
        builder.add(parse_header(one), one)
    assert builder.greatest_producer_id == 5
    assert not builder.has_room(LOG[0])
    assert builder.take() is not None and builder.take() is None
    assert builder.has_room(LOG[4] * 2), "one batch always fits"


@settings(max_examples=150, deadline=None)
@given(position=st.integers(0, sum(map(len, LOG)) - 1), bit=st.integers(0, 7))
def test_any_flipped_bit_is_found(position: int, bit: int) -> None:
    file, data, _ = file_of(LOG)
    damaged = bytearray(data)
    damaged[position] ^= 1 << bit
    with pytest.raises(InvalidRequest, match="it is damaged"):
        read_file(file, bytes(damaged), "it")


@pytest.mark.parametrize(
    ("batches", "why"),
    [
        ([batch(0), batch(4)], "begins at 4, not at 3"),
        ([batch(0, epoch=2), batch(3, epoch=1)], "the leader epoch falls"),
        ([batch(0)[:-1]], "cut"),
        ([b"x" * 200], "damaged"),
        ([b"short"], "left over"),
    ],
)
def test_a_file_whose_checksum_is_right_and_whose_batches_are_wrong_is_refused(batches: list[bytes], why: str) -> None:
    """A checksum shows only that nothing changed since it was computed."""
    import hashlib

    data = b"".join(batches)
    file = msgspec.structs.replace(
        file_of([batch(0)])[0], bytes=len(data), sha256=hashlib.sha256(data).hexdigest(), batches=len(batches)
    )
    with pytest.raises(InvalidRequest, match=why):
        read_file(file, data, "it")


def test_a_cut_file_and_a_wrong_count_are_refused() -> None:
    file, data, _ = file_of(LOG)
    with pytest.raises(InvalidRequest, match="bytes, not"):
        read_file(file, data[:-1], "it")
    with pytest.raises(InvalidRequest, match="not what the manifest says"):
        read_file(msgspec.structs.replace(file, batches=1), data, "it")
