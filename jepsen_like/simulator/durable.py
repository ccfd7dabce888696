"""What a replica calls stable is on its disk (S1): asked of the simulated disk, not of the replica.

All else that is promised rests on `stable_end_offset`: acknowledgements, the high watermark, who may be elected. It is
compared here with what a loss of power at this very moment would leave: durable files under durable names, holding
batch after batch, each of the leader epoch that the log says is there. So an fsync that is left out, one that counts
for what was written after it, and a name that nobody synced show at once, not only where power fails in time.

Work is proportional to what became stable: a `DurableMark` remembers how far a log was found. Topics with `flush=os`
promise nothing, and are not asked. What is *not* here: whether those batches are the right ones (`invariants.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from partitions.leader_epochs import LeaderEpochHistory
from partitions.segment import parse_segment_name
from raftlog.errors import CorruptBatch
from raftlog.model import Offset
from raftlog.record_batch import HEADER_BYTES, parse_header

from .disk import Inode, SimDisk


@dataclass(slots=True)
class DurableMark:
    """Up to where one log was found: the batch that begins at `offset` begins at `position` of this file."""

    inode: Inode | None = None
    position: int = 0
    offset: int = -1


def missing_on_disk(
    disk: SimDisk, folder: str, start: Offset, end: Offset, epochs: LeaderEpochHistory, mark: DurableMark
) -> str:
    """What of `[start, end)` a loss of power would take, for people; empty where nothing. Moves the mark."""
    if not start <= mark.offset <= end:
        mark.inode = None
    offset = int(start) if mark.inode is None else mark.offset
    if offset >= end:
        return ""
    files = _segments(disk, folder)
    bases = [base for base, _ in files]
    while offset < end:
        number = bisect_right(bases, offset) - 1
        if number < 0:
            return f"no file holds offset {offset}"
        base, inode = files[number]
        if mark.inode is not inode or mark.offset != offset:
            mark.inode, mark.position, mark.offset = inode, 0, base
        wrong = _walk(inode, offset, end, epochs, mark)
        if wrong:
            # The log was cut, and grew, between two looks: the mark says nothing. Once more from the file's start.
            mark.inode, mark.position, mark.offset = inode, 0, base
            wrong = _walk(inode, offset, end, epochs, mark)
        if wrong or mark.offset <= offset:
            mark.inode = None
            return wrong or f"segment {base} ends at {mark.offset}"
        offset = mark.offset
    return ""


def _segments(disk: SimDisk, folder: str) -> list[tuple[int, Inode]]:
    """Segments that a loss of power leaves, by their base offsets."""
    prefix = f"{folder}/"
    found = []
    for name, inode in disk.durable_files(prefix):
        base = parse_segment_name(name[len(prefix) :])
        if base is not None:
            found.append((int(base), inode))
    return sorted(found, key=lambda one: one[0])


def _walk(inode: Inode, offset: int, end: int, epochs: LeaderEpochHistory, mark: DurableMark) -> str:
    """From the mark on to `end` or the end of what is durable. What is wrong with a batch from `offset` on."""
    while mark.offset < end and mark.position < len(inode.durable):
        try:
            header = parse_header(bytes(inode.durable[mark.position : mark.position + HEADER_BYTES]))
        except CorruptBatch as error:
            return f"at offset {mark.offset} there is no batch: {error.detail}"
        if header.base_offset != mark.offset:
            return f"where offset {mark.offset} should be there is {header.base_offset}"
        if mark.position + header.total_bytes > len(inode.durable):
            return f"the batch at offset {mark.offset} is cut"
        if header.end_offset > offset and header.leader_epoch != epochs.epoch_at(Offset(mark.offset)):
            return f"the batch at offset {mark.offset} is of epoch {header.leader_epoch}"
        mark.position += header.total_bytes
        mark.offset = header.end_offset
    return ""
