"""Preparation for a recovery that must find known damage: indexes are removed, and unreadable files set aside.

A good index would let recovery trust the segment; a lost sector would fail the recovery, again and again. Only for a
replica that does not count any more, or before recovery has reported the loss.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection

from partitions.files.index_files import index_names
from partitions.files.quarantine import unused_name
from partitions.files.segment import parse_segment_name, segment_name
from raftlog.config import MIB
from raftlog.errors import DiskFailed, DiskFull
from raftlog.model import Offset
from raftlog.ports import Disk


def distrust(disk: Disk, path: str, suspects: Collection[Offset]) -> None:
    """Remove the indexes of the segments that hold these offsets, and set aside those that cannot be read to their end.

    Recovery then reads all of these segments, and finds the damage again. Blocks. Raises `DiskFailed` if a file cannot
    be set aside; if only an index cannot be removed, recovery fails as well, or the damage is found later.
    """
    bases = [base for name in disk.list(path) if (base := parse_segment_name(name)) is not None]
    found = {max((base for base in bases if base <= suspect), default=None) for suspect in suspects}
    for base in sorted(base for base in found if base is not None):
        for name in index_names(base):
            with contextlib.suppress(DiskFailed, DiskFull):
                disk.remove(f"{path}/{name}")
        name = segment_name(base)
        if not _is_readable(disk, f"{path}/{name}"):
            disk.rename(f"{path}/{name}", f"{path}/{unused_name(disk, path, name)}")
            disk.fsync_directory(path)


def _is_readable(disk: Disk, path: str) -> bool:
    with contextlib.closing(disk.open(path)) as file:
        position = 0
        size = file.size()
        while position < size:
            try:
                data = file.pread(min(MIB, size - position), position)
            except DiskFailed:
                return False
            if not data:
                break
            position += len(data)
    return True
