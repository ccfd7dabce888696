"""A walk from one batch header to the next through a segment file, checking what the batches' own CRC does not cover.

`check_placement` is the one check of base offset, leader epoch and length. It runs just before a batch is written and
whenever one is read back, so that a batch that passes the first check and fails the second was changed on the disk.

A walk reads through a function that may answer «not in memory» (`File.pread_cached`); it then raises `Cold`, without
any effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from raftlog.config import MAX_BATCH_BYTES
from raftlog.errors import CorruptBatch, DiskFailed
from raftlog.model import FilePosition, LeaderEpoch, Offset
from raftlog.ports import Buffer
from raftlog.records.batch import HEADER_BYTES, BatchHeader, check_crc, parse_header

from .leader_epochs import LeaderEpochHistory

MAX_BATCHES_PER_READ = 1024
"""Bound on the headers that one read walks over: about two milliseconds, a tenth of what the loop may be blocked."""

PROBE_BYTES = 128 * 1024
"""A region counts as in memory if a byte of each piece of this size is: the kernel's default read-ahead."""

_SMALL_BATCH = 1024
_READ_AHEAD = 32 * 1024

Pread = Callable[[int, int], bytes | None]
"""(length, position) → bytes, fewer only at the end of the file; None if they are not in memory."""


class Cold(Exception):
    """The bytes are not in memory: a worker has to read them, blocking."""


def check_placement(header: BatchHeader, expected_offset: Offset, expected_epoch: LeaderEpoch) -> None:
    """Check a batch against its neighbour and the leader epoch history. Raises `CorruptBatch`."""
    if header.base_offset != expected_offset:
        raise CorruptBatch(f"the batch at offset {expected_offset} says it begins at {header.base_offset}")
    if header.leader_epoch != expected_epoch:
        raise CorruptBatch(
            f"the batch at offset {expected_offset} is of leader epoch {header.leader_epoch}, not {expected_epoch}"
        )
    if header.total_bytes > MAX_BATCH_BYTES:
        raise CorruptBatch(f"the batch at offset {expected_offset} says it has {header.total_bytes} bytes")


def check_whole(batch: Buffer, expected_offset: Offset, expected_epoch: LeaderEpoch) -> BatchHeader:
    """Check placement and CRC of one whole batch. Raises `CorruptBatch`."""
    header = parse_header(batch)
    check_placement(header, expected_offset, expected_epoch)
    check_crc(batch)
    return header


class HeaderWalk:
    """The headers of a file, one after the other, from the beginning of a batch on.

    Invariant: the next header is at `position`, and its batch begins at `offset`.
    """

    def __init__(
        self, pread: Pread, epochs: LeaderEpochHistory, position: FilePosition, offset: Offset, end_position: int
    ) -> None:
        self._pread = pread
        self._epochs = epochs
        self.position = position
        self.offset = offset
        self._end_position = end_position
        self._ahead = b""
        self._ahead_position = 0
        self._small = False

    def peek(self) -> BatchHeader | None:
        """Return the checked header at `position`; None at the end. Raises `Cold` and `CorruptBatch`."""
        if self.position >= self._end_position:
            return None
        header = parse_header(*self._bytes_at_position())
        check_placement(header, self.offset, self._epochs.epoch_at(self.offset))
        if self.position + header.total_bytes > self._end_position:
            raise CorruptBatch(f"the batch at offset {self.offset} reaches beyond the segment's end")
        return header

    def step(self, header: BatchHeader) -> None:
        """Move behind the batch that `peek` returned."""
        self._small = header.total_bytes < _SMALL_BATCH
        self.position = FilePosition(self.position + header.total_bytes)
        self.offset = Offset(header.end_offset)

    def __iter__(self) -> Iterator[BatchHeader]:
        """Iterate over the headers up to the end; `position` is behind the yielded one."""
        while (header := self.peek()) is not None:
            self.step(header)
            yield header

    def _bytes_at_position(self) -> tuple[bytes, int]:
        within = self.position - self._ahead_position
        if not 0 <= within <= len(self._ahead) - HEADER_BYTES:
            wanted = _READ_AHEAD if self._small else HEADER_BYTES
            data = self._pread(min(wanted, self._end_position - self.position), self.position)
            if data is None:
                raise Cold
            self._ahead = data
            self._ahead_position = self.position
            within = 0
        return self._ahead, within


class Region(msgspec.Struct, frozen=True):
    """Consecutive whole batches in a file."""

    position: FilePosition
    length: int
    first_offset: Offset
    next_offset: Offset
    batch_count: int


def skip_to(walk: HeaderWalk, offset: Offset) -> BatchHeader | None:
    """Walk until the batch that holds `offset` is the next one; return its header, or None at the end."""
    while (header := walk.peek()) is not None and header.end_offset <= offset:
        walk.step(header)
    return header


def find_region(
    walk: HeaderWalk,
    start_offset: Offset,
    end_offset: Offset,
    max_bytes: int,
    max_batches: int,
    *,
    min_one: bool,
    up_to_damage: bool = False,
) -> Region | None:
    """Find the batches from the one that holds `start_offset` on, none beyond `end_offset`; None if there is none.

    At most `max_bytes` (the first excepted, with `min_one`) and `max_batches`. Raises `Cold` and `CorruptBatch`. With
    `up_to_damage` the region ends before a header that is bad or cannot be read. The caller must then check the CRCs:
    the length of the last batch may be wrong.
    """
    header = skip_to(walk, start_offset)
    position = walk.position
    first_offset = walk.offset
    length = 0
    count = 0
    while header is not None and header.end_offset <= end_offset and count < max_batches:
        if length + header.total_bytes > max_bytes and not (min_one and count == 0):
            break
        length += header.total_bytes
        count += 1
        walk.step(header)
        try:
            # Nothing beyond the requested end is read: those bytes may not be written yet.
            header = walk.peek() if walk.offset < end_offset else None
        except (CorruptBatch, DiskFailed):
            if not up_to_damage:
                raise
            break
    if not count:
        return None
    return Region(
        position=position,
        length=length,
        first_offset=first_offset,
        next_offset=walk.offset,
        batch_count=count,
    )


def require_in_memory(pread: Pread, region: Region) -> None:
    """Raise `Cold` if sending the region would block on the disk: a sample, since the walk has read every header."""
    end = region.position + region.length
    for position in range(region.position, end, PROBE_BYTES):
        if pread(1, position) is None:
            raise Cold
    if pread(1, end - 1) is None:
        raise Cold
