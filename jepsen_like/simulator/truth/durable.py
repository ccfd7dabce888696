"""Durability (S1): what a replica calls stable is on its disk, according to the simulated disk and not to the replica.

All other promises rest on `stable_end_offset`: acknowledgements, the high watermark, eligibility for elections. It is
compared here with what a power failure at this moment would leave: durable files under durable names, with batch after
batch, each of the leader epoch that the log claims. So a missing fsync, an fsync that counts for later writes, and an
unsynced name show at once, and not only if the power fails in time.

The work is proportional to what became stable: a `DurableMark` remembers how far a log was checked, and in which file.
As long as that file exists under its name, the check continues in it. Topics with `flush=os` promise nothing, and are
not checked.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache

from jepsen_like.simulator.world.disk import Inode, SimDisk
from partitions.files.leader_epochs import LeaderEpochHistory
from partitions.files.segment import parse_segment_name, segment_name
from raftlog.errors import CorruptBatch
from raftlog.model import Offset
from raftlog.records.batch import HEADER_BYTES, parse_header

HEADERS = 512
"""Number of cached headers: those of batches that replicas are receiving now."""


@dataclass(slots=True)
class DurableMark:
    """The point up to which a log was checked: the batch at `offset` begins at `position` of this file."""

    inode: Inode | None = None
    path: str = ""
    """The file's path."""
    position: int = 0
    offset: int = -1


def missing_on_disk(
    disk: SimDisk, folder: str, start: Offset, end: Offset, epochs: LeaderEpochHistory, mark: DurableMark
) -> str:
    """Return which part of `[start, end)` a power failure would take, as text; empty if none. Moves the mark."""
    if not start <= mark.offset <= end:
        mark.inode = None
    elif mark.inode is not None and _goes_on(disk, folder, end, epochs, mark):
        return ""
    offset = int(start) if mark.inode is None else mark.offset
    if offset >= end:
        return ""
    files = _segments(disk, folder)
    bases = [base for base, _, _ in files]
    while offset < end:
        number = bisect_right(bases, offset) - 1
        if number < 0:
            return f"no file holds offset {offset}"
        base, path, inode = files[number]
        if mark.inode is not inode or mark.offset != offset:
            mark.inode, mark.path, mark.position, mark.offset = inode, path, 0, base
        wrong = _walk(inode, offset, end, epochs, mark)
        if wrong:
            # The log was truncated, and grew, between two checks: the mark is invalid. Check again from the file's
            # start.
            mark.inode, mark.path, mark.position, mark.offset = inode, path, 0, base
            wrong = _walk(inode, offset, end, epochs, mark)
        if wrong or mark.offset <= offset:
            mark.inode = None
            return wrong or f"segment {base} ends at {mark.offset}"
        offset = mark.offset
    return ""


def _goes_on(disk: SimDisk, folder: str, end: Offset, epochs: LeaderEpochHistory, mark: DurableMark) -> bool:
    """Return whether everything up to `end` is in the mark's file and the next ones, which is nearly always so.

    If not, the check of the whole folder names the problem.
    """
    while mark.offset < end:
        inode, before = mark.inode, mark.offset
        if inode is None or disk.durable_file(mark.path) is not inode or _walk(inode, before, end, epochs, mark):
            return False
        if mark.offset < end:
            path = f"{folder}/{segment_name(Offset(mark.offset))}"
            following = disk.durable_file(path)
            if following is None:
                return False
            mark.inode, mark.path, mark.position = following, path, 0
            if _walk(following, mark.offset, end, epochs, mark) or mark.offset <= before:
                return False
    return True


def _segments(disk: SimDisk, folder: str) -> list[tuple[int, str, Inode]]:
    """Return the segments that a power failure would leave, by base offset."""
    before = len(folder) + 1
    found = []
    for path, inode in disk.durable_files(folder):
        base = parse_segment_name(path[before:])
        if base is not None:
            found.append((int(base), path, inode))
    return sorted(found, key=lambda one: one[0])


def _walk(inode: Inode, offset: int, end: int, epochs: LeaderEpochHistory, mark: DurableMark) -> str:
    """Walk from the mark to `end` or the end of the durable bytes; return what is wrong with a batch from
    `offset` on.
    """
    durable = inode.durable
    while mark.offset < end and mark.position < len(durable):
        try:
            base, end_offset, epoch, total = _place(bytes(durable[mark.position : mark.position + HEADER_BYTES]))
        except CorruptBatch as error:
            return f"at offset {mark.offset} there is no batch: {error.detail}"
        if base != mark.offset:
            return f"the batch at offset {mark.offset} claims offset {base}"
        if mark.position + total > len(durable):
            return f"the batch at offset {mark.offset} is truncated"
        if end_offset > offset and epoch != epochs.epoch_at(Offset(mark.offset)):
            return f"the batch at offset {mark.offset} is of epoch {epoch}"
        mark.position += total
        mark.offset = end_offset
    return ""


@lru_cache(maxsize=HEADERS)
def _place(content: bytes) -> tuple[int, int, int, int]:
    """Return base and end offset, leader epoch and length in bytes of the batch with this header. Raises
    `CorruptBatch`.

    Cached, since every replica has the same headers.
    """
    header = parse_header(content)
    return header.base_offset, header.end_offset, header.leader_epoch, header.total_bytes
