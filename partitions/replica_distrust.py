"""Making sure that recovery reads what was seen to be damaged: a good index would let it trust the segment.

What is *not* here: finding damage, and what recovery makes of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection

from raftlog.errors import DiskFailed, DiskFull
from raftlog.model import Offset
from raftlog.ports import Disk

from .index_files import index_names
from .segment import parse_segment_name


def distrust(disk: Disk, path: str, suspects: Collection[Offset]) -> None:
    """Remove the indexes of the segments that hold these offsets, so that recovery reads all of them and finds what was
    found. Blocks. A disk that refuses even that fails the recovery as well, or finds the damage again another day."""
    bases = [base for name in disk.list(path) if (base := parse_segment_name(name)) is not None]
    for suspect in suspects:
        base = max((base for base in bases if base <= suspect), default=None)
        for name in index_names(base) if base is not None else ():
            with contextlib.suppress(DiskFailed, DiskFull):
                disk.remove(f"{path}/{name}")
