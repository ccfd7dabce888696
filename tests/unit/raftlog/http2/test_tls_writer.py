"""Regions of files under TLS, without a connection: cached bytes are sent at once, and a failure names its reason."""

from __future__ import annotations

import asyncio
import os

import pytest

from raftlog.errors import DiskFailed
from raftlog.http2.tls import PIECE_BYTES, TransportWriter
from raftlog.ports import FileRegion


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.sizes: list[int] = []

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.extend(data)
        self.sizes.append(len(data))


class HotFile:
    """All of it is in the page cache."""

    def __init__(self, content: bytes, broken_at: int | None = None) -> None:
        self.content = content
        self.broken_at = broken_at
        self.released: list[str] = []

    def pread_cached(self, length: int, position: int) -> bytes:
        if self.broken_at is not None and position >= self.broken_at:
            raise DiskFailed("read segment: Input/output error")
        return self.content[position : position + length]

    def region(self, name: str, position: int, length: int) -> FileRegion:
        return FileRegion(self, position, length, lambda: self.released.append(name))  # type: ignore[arg-type]


class World:
    def __init__(self) -> None:
        self.transport, self.failures = Transport(), list[str]()
        self.writer = TransportWriter(self.transport, refill=lambda: None, failed=self.failures.append)


@pytest.fixture
async def world() -> World:
    return World()


async def test_a_region_goes_in_pieces_and_is_released_after_the_last(world: World) -> None:
    file = HotFile(os.urandom(3 * PIECE_BYTES))
    world.writer.extend([b"head", file.region("long", 7, 2 * PIECE_BYTES + 1), file.region("short", 0, 5), b"tail"])
    assert world.writer.backlog == 4 + 2 * PIECE_BYTES + 1 + 5 + 4
    world.writer.flush()
    assert world.transport.written == b"head" + file.content[7 : 2 * PIECE_BYTES + 8] + file.content[:5] + b"tail"
    assert file.released == ["long", "short"] and not world.failures
    assert world.writer.backlog == world.writer.pieces == 0
    assert world.writer.total_sent == len(world.transport.written)


async def test_small_parts_share_a_piece(world: World) -> None:
    """Each write costs a TLS record, a system call and a turn of the peer's loop."""
    file = HotFile(os.urandom(PIECE_BYTES))
    long = os.urandom(PIECE_BYTES)
    world.writer.send([b"header 1 ", b"answer", b"header 2 ", file.region("region", 0, 1000), b"header 3 ", long])
    expected = b"header 1 answerheader 2 " + file.content[:1000] + b"header 3 " + long
    assert world.transport.written == expected
    assert world.transport.sizes == [PIECE_BYTES, len(expected) - PIECE_BYTES]
    assert file.released == ["region"] and world.writer.total_sent == len(expected)


async def test_a_piece_of_one_part_is_not_copied(world: World) -> None:
    part = os.urandom(PIECE_BYTES)
    given: list[object] = []
    world.transport.write = given.append  # type: ignore[method-assign,assignment]
    world.writer.send([part])
    assert given[0] is part


@pytest.mark.parametrize(
    ("file", "told"),
    [
        (HotFile(b"x" * 60), "disk_failed: the file ends 40 bytes before the region does"),
        (HotFile(b"x" * (PIECE_BYTES + 60)), "disk_failed: the file ends 40 bytes before the region does"),
        (HotFile(b"x" * 1000, broken_at=0), "disk_failed: read segment: Input/output error"),
    ],
    ids=["short", "short in a later piece", "broken"],
)
async def test_unreadable_bytes_fail_the_connection_once_with_the_reason(
    world: World, file: HotFile, told: str
) -> None:
    length = len(file.content) // PIECE_BYTES * PIECE_BYTES + 100
    world.writer.extend([file.region("first", 0, length), file.region("next", 0, 10), b"never"])
    world.writer.flush()
    assert world.failures == [told]
    assert sorted(file.released) == ["first", "next"]
    assert b"never" not in world.transport.written
    world.writer.send([file.region("late", 0, 10)])
    assert file.released[-1] == "late" and world.failures == [told], "closed for good"
