"""The actions of recovery on the files of a segment.

No action drops bytes that look like batches: they are set aside under a name that no code reads.
"""

from __future__ import annotations

import contextlib

from partitions.files.durable import Durable, Steps
from partitions.files.index_files import index_names
from partitions.files.quarantine import unused_name
from partitions.files.segment import segment_name
from raftlog.config import MIB
from raftlog.errors import DiskError
from raftlog.model import Offset
from raftlog.ports import Disk

from .scan import ScannedSegment
from .table import Action


def act(disk: Disk, path: str, action: Action, scanned: ScannedSegment, *, whole: bool) -> Steps[None]:
    """Perform the action on a segment. `whole`: the whole segment is misplaced."""
    name = segment_name(scanned.base_offset)
    if action in (Action.REMOVE, Action.QUARANTINE):
        remove_indexes(disk, path, scanned.base_offset)
    if action is Action.REMOVE:
        disk.remove(f"{path}/{name}")
    elif action is Action.QUARANTINE and (whole or not scanned.index.size):
        disk.rename(f"{path}/{name}", f"{path}/{unused_name(disk, path, name)}")
    elif action is Action.QUARANTINE:
        yield from _set_tail_aside(disk, path, name, scanned.index.size, scanned.size)
        yield from _cut(disk, path, scanned)
    elif action is Action.CUT:
        yield from _cut(disk, path, scanned)


def remove_indexes(disk: Disk, path: str, base: Offset) -> None:
    for name in index_names(base):
        disk.remove(f"{path}/{name}")


def _cut(disk: Disk, path: str, scanned: ScannedSegment) -> Steps[None]:
    with contextlib.closing(disk.open(f"{path}/{segment_name(scanned.base_offset)}")) as file:
        file.truncate(scanned.index.size)
        yield Durable((file,))
    scanned.size = scanned.index.size


def _set_tail_aside(disk: Disk, path: str, name: str, position: int, size: int) -> Steps[None]:
    """Copy the bytes from `position` on into a quarantine file."""
    aside = f"{path}/{unused_name(disk, path, f'{name}.{position}')}"
    with contextlib.closing(disk.open(f"{path}/{name}")) as source:
        try:
            with contextlib.closing(disk.open(aside, exclusive=True)) as target:
                while position < size:
                    data = source.pread(min(MIB, size - position), position)
                    target.pwritev([data], target.size())
                    position += len(data)
                yield Durable((target,))
        except DiskError:
            # A retry uses another name.
            disk.remove(aside)
            raise
