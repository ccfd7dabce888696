"""Messages are delimited by their prefix, not by frames, and cost no more memory than was received."""

from __future__ import annotations

import pytest

from raftlog.http2.frames import ErrorCode, Http2Error
from raftlog.http2.messages import (
    FIRST_BYTES,
    GROW_BYTES,
    SMALL_BYTES,
    MessageAssembler,
    PartialBudget,
    PartialOverflow,
    PartialPool,
    normalize,
)
from raftlog.ports import FileRegion
from tests.support.http.http2_peer import prefixed


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


def test_memory_follows_the_received_bytes_and_not_the_announced_ones() -> None:
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


# --- Many connections ------------------------------------------------------------------------------------------------


class Holder:
    """One stream of a connection of its own, with an unfinished message in a shared pool."""

    def __init__(self, pool: PartialPool, length: int = 8 << 20) -> None:
        self.budget = PartialBudget(1 << 30, pool)
        self.reader = MessageAssembler(32 << 20, self.budget, self.give_way)
        self.gave_way = False
        self.reader.feed(memoryview(length.to_bytes(4, "big")))

    def give_way(self) -> None:
        self.gave_way = True
        self.reader.discard()


def test_the_message_that_is_unfinished_for_longest_gives_way_to_others() -> None:
    pool = PartialPool(10 << 20)
    holders = [Holder(pool) for _ in range(500)]
    assert pool.used <= pool.limit
    assert not holders[-1].gave_way and holders[0].gave_way
    gone = [holder.gave_way for holder in holders]
    assert gone == sorted(gone, reverse=True), "the oldest first"
    assert all(holder.budget.used == 0 for holder in holders if holder.gave_way)


def test_buffers_begin_small_and_double_while_the_pool_is_short() -> None:
    pool = PartialPool(4 * FIRST_BYTES)
    first = [Holder(pool) for _ in range(3)]
    assert pool.used == 3 * FIRST_BYTES
    late = Holder(pool)
    assert late.budget.used == SMALL_BYTES
    late.reader.feed(memoryview(bytes(SMALL_BYTES + 1)))
    assert late.budget.used == 2 * SMALL_BYTES
    assert not any(holder.gave_way for holder in first)


def test_a_message_that_needs_more_than_all_others_have_is_refused() -> None:
    pool = PartialPool(2 * FIRST_BYTES)
    other, greedy = Holder(pool), Holder(pool)
    with pytest.raises(PartialOverflow):
        greedy.reader.feed(memoryview(bytes(6 << 20)))
    assert other.gave_way
    greedy.reader.discard()
    assert pool.used == 0


def test_a_pool_forgets_a_message_that_is_complete() -> None:
    pool = PartialPool(3 * FIRST_BYTES)
    first = Holder(pool, FIRST_BYTES)
    first.reader.feed(memoryview(bytes(FIRST_BYTES)))
    others = [Holder(pool) for _ in range(100)]
    assert not first.gave_way and others[0].gave_way


def test_a_connection_takes_its_bytes_to_another_pool() -> None:
    old, new = PartialPool(1000), PartialPool(1000)
    budget = PartialBudget(1000, old)
    budget.take(300)
    budget.change_pool(new)
    assert (old.used, new.used) == (0, 300)
    budget.give_back(300)
    assert new.used == 0


def test_a_connection_takes_content_before_an_answer_to_another_pool() -> None:
    old, new = PartialPool(1000), PartialPool(1000)
    budget = PartialBudget(1000, old)
    streams = [MessageAssembler(1000, budget) for _ in range(2)]
    for stream in (*streams, streams[0]):
        budget.take_early(50, stream)
    budget.take(300)
    assert (old.used, old.early.used, budget.used) == (300, 150, 450)
    budget.change_pool(new)
    assert (old.used, old.early.used, new.used, new.early.used) == (0, 0, 300, 150)
    for stream in (*streams, streams[0]):
        budget.give_back_early(stream)
    assert (new.early.used, budget.used) == (0, 300)


def test_content_before_an_answer_is_bounded_for_a_connection_and_for_all() -> None:
    pool = PartialPool(1000)
    budget = PartialBudget(200, pool)
    stream = MessageAssembler(1000, budget)
    budget.take_early(200, stream)
    with pytest.raises(PartialOverflow):
        budget.take_early(1, stream)
    other = PartialBudget(1000, pool)
    alone = MessageAssembler(1000, other)
    budget.give_back_early(stream)
    other.take_early(250, alone)
    with pytest.raises(PartialOverflow):
        other.take_early(1, alone)
    assert (pool.early.used, pool.used) == (250, 0)
