"""The files that recovery or a repair set aside: their names, and how many of them stay.

    00000000000000731200.log.quarantined           a whole segment
    00000000000000731200.log.4711.quarantined      its bytes from position 4711 on
    00000000000000731200.log.4711.1.quarantined    the same, another time

They are for people; no code reads them. None is removed before the replica is in sync with a leader again: the data
that one replica sets aside may be what every other one has lost (S1). From then on a bounded part of it stays for
inspection: the lowest offsets first, because of all that a repair sets aside the damage itself lies lowest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from raftlog.config import MIB
from raftlog.ports import Disk

QUARANTINED_SUFFIX = ".quarantined"

FILES_KEPT = 16
"""Bound on the quarantined files of one replica that is in sync."""

BYTES_KEPT = 1024 * MIB
"""Bound on their bytes: a segment of the default size."""


def quarantined(disk: Disk, path: str) -> list[str]:
    """Return the names of the quarantined files in this folder, the lowest offsets first. Blocks."""
    return [name for name in disk.list(path) if name.endswith(QUARANTINED_SUFFIX)]


def unused_name(disk: Disk, path: str, name: str) -> str:
    """Return an unused name under which the file `name` can be set aside. Blocks."""
    number = 0
    candidate = f"{name}{QUARANTINED_SUFFIX}"
    while disk.exists(f"{path}/{candidate}"):
        number += 1
        candidate = f"{name}.{number}{QUARANTINED_SUFFIX}"
    return candidate


def prune_quarantined(disk: Disk, path: str, names: Sequence[str]) -> None:
    """Remove all but `FILES_KEPT` files and `BYTES_KEPT` bytes of `names`, for a replica that has everything. Blocks.

    `names` were `quarantined` when the replica was opened, so files that another repair sets aside meanwhile stay.
    Raises `DiskFailed`.
    """
    files_kept = bytes_kept = 0
    for name in names:
        try:
            with contextlib.closing(disk.open(f"{path}/{name}")) as file:
                size = file.size()
        except FileNotFoundError:
            continue  # A person took it away.
        if files_kept < FILES_KEPT and bytes_kept + size <= BYTES_KEPT:
            files_kept, bytes_kept = files_kept + 1, bytes_kept + size
        else:
            disk.remove(f"{path}/{name}")
