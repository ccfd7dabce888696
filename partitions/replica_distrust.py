"""Around a recovery that finds damage: that it reads what was seen to be damaged, since a good index would let it trust
the segment; and that what was set aside does not pile up.

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

QUARANTINED_SUFFIX = ".quarantined"
QUARANTINED_KEPT = 16
"""Files set aside that a replica's folder keeps."""


def distrust(disk: Disk, path: str, suspects: Collection[Offset]) -> None:
    """Remove the indexes of the segments that hold these offsets, so that recovery reads all of them and finds what was
    found. Blocks. A disk that refuses even that fails the recovery as well, or finds the damage again another day."""
    bases = [base for name in disk.list(path) if (base := parse_segment_name(name)) is not None]
    for suspect in suspects:
        base = max((base for base in bases if base <= suspect), default=None)
        for name in index_names(base) if base is not None else ():
            with contextlib.suppress(DiskFailed, DiskFull):
                disk.remove(f"{path}/{name}")


def prune_quarantined(disk: Disk, path: str) -> None:
    """Keep the newest few of what was set aside in this folder (of the greatest offsets): a disk that rots again and
    again must not fill up with what it spoiled. Blocks."""
    set_aside = [name for name in disk.list(path) if name.endswith(QUARANTINED_SUFFIX)]
    for name in set_aside[:-QUARANTINED_KEPT]:
        disk.remove(f"{path}/{name}")
