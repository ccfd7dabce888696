"""What a replica calls stable is on its disk (S1): asked of the simulated disk, not of the replica.

All else that is promised rests on `stable_end_offset`: acknowledgements, the high watermark, who may be elected. It is
compared here with what a loss of power at this very moment would leave: durable files under durable names, holding
batch after batch, each of the leader epoch that the log says is there. So an fsync that is left out, one that counts
for what was written after it, and a name that nobody synced show at once, not only where power fails in time.

Work is proportional to what became stable: a `DurableMark` remembers how far a log was found, and in which file. As
long as that file is there under its name the look goes on in it. Topics with `flush=os` promise nothing, and are not
asked.
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
"""So many are remembered: of those batches that replicas are getting now."""


@dataclass(slots=True)
class DurableMark:
    """Up to where one log was found: the batch that begins at `offset` begins at `position` of this file."""

    inode: Inode | None = None
    path: str = ""
    """Of the file."""
    position: int = 0
    offset: int = -1


def missing_on_disk(
    disk: SimDisk, folder: str, start: Offset, end: Offset, epochs: LeaderEpochHistory, mark: DurableMark
) -> str:
    """What of `[start, end)` a loss of power would take, for people; empty where nothing. Moves the mark."""
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
            # The log was cut, and grew, between two looks: the mark says nothing. Once more from the file's start.
            mark.inode, mark.path, mark.position, mark.offset = inode, path, 0, base
            wrong = _walk(inode, offset, end, epochs, mark)
        if wrong or mark.offset <= offset:
            mark.inode = None
            return wrong or f"segment {base} ends at {mark.offset}"
        offset = mark.offset
    return ""


def _goes_on(disk: SimDisk, folder: str, end: Offset, epochs: LeaderEpochHistory, mark: DurableMark) -> bool:
    """Whether all is there up to `end`, in the file of the mark and in the next one: nearly always. What is wrong, if
    anything, is told by who looks at the whole folder."""
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
    """Segments that a loss of power leaves, by their base offsets."""
    before = len(folder) + 1
    found = []
    for path, inode in disk.durable_files(folder):
        base = parse_segment_name(path[before:])
        if base is not None:
            found.append((int(base), path, inode))
    return sorted(found, key=lambda one: one[0])


def _walk(inode: Inode, offset: int, end: int, epochs: LeaderEpochHistory, mark: DurableMark) -> str:
    """From the mark on to `end` or the end of what is durable. What is wrong with a batch from `offset` on."""
    durable = inode.durable
    while mark.offset < end and mark.position < len(durable):
        try:
            base, end_offset, epoch, total = _place(bytes(durable[mark.position : mark.position + HEADER_BYTES]))
        except CorruptBatch as error:
            return f"at offset {mark.offset} there is no batch: {error.detail}"
        if base != mark.offset:
            return f"where offset {mark.offset} should be there is {base}"
        if mark.position + total > len(durable):
            return f"the batch at offset {mark.offset} is cut"
        if end_offset > offset and epoch != epochs.epoch_at(Offset(mark.offset)):
            return f"the batch at offset {mark.offset} is of epoch {epoch}"
        mark.position += total
        mark.offset = end_offset
    return ""


@lru_cache(maxsize=HEADERS)
def _place(content: bytes) -> tuple[int, int, int, int]:
    """Base and end offset, leader epoch and length in bytes of the batch that has this header. Raises `CorruptBatch`.
    Every replica has the same ones."""
    header = parse_header(content)
    return header.base_offset, header.end_offset, header.leader_epoch, header.total_bytes
