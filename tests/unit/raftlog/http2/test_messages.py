"""Messages are told apart by their prefix, never by frames, and cost no more memory than was received."""

from __future__ import annotations

import pytest

from raftlog.http2.frames import ErrorCode, Http2Error
from raftlog.http2.messages import (
    FIRST_BYTES,
    GROW_BYTES,
    MessageAssembler,
    PartialBudget,
    PartialOverflow,
    normalize,
)
from raftlog.ports import FileRegion
from tests.support.http2_peer import prefixed


def assembler(limit: int = 1 << 20, budget: int = 1 << 30) -> tuple[MessageAssembler, PartialBudget]:
    shared = PartialBudget(budget)
    return MessageAssembler(limit, shared), shared


@pytest.mark.parametrize("piece", [1, 2, 3, 4, 5, 7, 64, 10_000])
def test_any_pieces_give_the_same_messages(piece: int) -> None:
    sent = [b"", b"a", b"bc" * 50, b"", b"d" * 1000, b"e"]
    wire = prefixed(*sent)
    reader, budget = assembler()
    got: list[bytes] = []
    for start in range(0, len(wire), piece):
        got += [bytes(message) for message in reader.feed(memoryview(wire)[start : start + piece])]
    assert got == sent
    assert reader.at_boundary and budget.used == 0


def test_a_message_above_the_limit_is_refused_by_its_prefix_alone() -> None:
    reader, budget = assembler(limit=100)
    assert [len(m) for m in reader.feed(memoryview(prefixed(b"x" * 100)))] == [100]
    with pytest.raises(Http2Error, match="message of 101 bytes announced, the limit is 100") as caught:
        reader.feed(memoryview((101).to_bytes(4, "big")))
    assert caught.value.code is ErrorCode.ENHANCE_YOUR_CALM
    assert budget.used == 0


def test_memory_follows_what_was_received_and_not_what_was_announced() -> None:
    length = 30 << 20
    reader, budget = assembler(limit=length)
    reader.feed(memoryview(length.to_bytes(4, "big")))
    assert budget.used == FIRST_BYTES
    received = 0
    while received < 10 << 20:
        room = reader.room(1 << 20)
        received += len(room)
        assert reader.filled(len(room)) is None
        assert budget.used <= max(FIRST_BYTES, received + GROW_BYTES)
    reader.discard()
    assert budget.used == 0 and reader.at_boundary


def test_the_rest_of_a_message_can_be_written_into_its_own_buffer() -> None:
    body = bytes(range(256)) * 20_000
    reader, budget = assembler(limit=len(body))
    wire = memoryview(prefixed(body))
    assert reader.feed(wire[:1000]) == []
    position, message = 1000, None
    assert reader.wanted() == len(wire) - position
    while message is None:
        room = reader.room(300_000)
        room[:] = wire[position : position + len(room)]
        position += len(room)
        message = reader.filled(len(room))
    assert position == len(wire) and message == body
    assert budget.used == 0 and reader.wanted() == 0


def test_unfinished_messages_of_all_streams_share_one_budget() -> None:
    budget = PartialBudget(1000)
    first, second = MessageAssembler(800, budget), MessageAssembler(800, budget)
    first.feed(memoryview((800).to_bytes(4, "big")))
    with pytest.raises(PartialOverflow):
        second.feed(memoryview((300).to_bytes(4, "big")))
    second.discard()
    assert budget.used == 800
    first.discard()
    assert budget.used == 0


def test_normalize_counts_bytes_whatever_the_items_are() -> None:
    released: list[int] = []
    empty = FileRegion(None, 0, 0, lambda: released.append(1))  # type: ignore[arg-type]
    wide = memoryview(bytearray(16)).cast("I")
    parts, total = normalize([b"abc", b"", wide, empty, bytearray(5)])
    assert total == 24
    assert [len(part) for part in parts if not isinstance(part, FileRegion)] == [3, 16, 5]
    assert released == [1]  # an empty region is sent at once
