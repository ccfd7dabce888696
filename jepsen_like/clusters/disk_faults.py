"""Faults of a disk whose node keeps running: no space left, or no writes at all.

* Full: one file takes every free block. The blocks are only reserved, so the machine's own disk is not filled.
* Read-only: the kernel is made to believe that the file system has an error (`trigger_fs_error`) and reacts as
  configured (`errors=remount-ro`): it aborts the journal and refuses writes, also to open files. Data that was not
  fsynced is lost. The repair is an operator's: unmount, check, mount.

Both are proved by a write that is refused. The functions block; processes must have ended before `repair`.

Sources: ext4(5), `fs/ext4/sysfs.c`.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from .commands import CommandFailed, run
from .power_loss import Volume

FILLER, WITNESS = "filler", "witness-written"
PIECE_BYTES_MAX = 64 * 1024 * 1024
PIECE_BYTES_MIN = 4096
E2FSCK_REPAIRED = 1
"""Exit code of e2fsck: errors were found and corrected."""


def fill(volume: Volume) -> int:
    """Reserve all free space, including what was freed since the last call, and return the bytes reserved.

    Raises `OSError` for any error but a full disk.
    """
    piece = PIECE_BYTES_MAX
    with Path(volume.path, FILLER).open("ab") as file:
        taken = os.fstat(file.fileno()).st_size
        while piece >= PIECE_BYTES_MIN:
            try:
                os.posix_fallocate(file.fileno(), taken, piece)
                taken += piece
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                piece //= 2
    return taken


def empty(volume: Volume) -> None:
    """Release the reserved space. Idempotent."""
    with suppress(FileNotFoundError):
        os.remove(os.path.join(volume.path, FILLER))


def turn_read_only(volume: Volume) -> None:
    """Make the file system turn read-only. Raises `CommandFailed` if this kernel does not support it."""
    device = os.path.basename(device_of(volume))
    try:
        Path("/sys/fs/ext4", device, "trigger_fs_error").write_text("1\n")
    except OSError as error:
        raise CommandFailed(f"cannot trigger a file system error of ext4 on {device}: {error.strerror}") from None


def repair(volume: Volume) -> None:
    """Unmount, check and mount the file system. Raises `CommandFailed` or `PowerLossUnavailable`."""
    volume.unmount()
    run("e2fsck", "-p", volume.image, accept=(E2FSCK_REPAIRED,))
    volume.mount()


def refusal(volume: Volume) -> int | None:
    """Return the errno with which a synced write is refused, or None if it succeeds."""
    path = Path(volume.path, WITNESS)
    try:
        with path.open("wb", buffering=0) as file:
            file.write(b"w" * PIECE_BYTES_MIN)
            os.fdatasync(file.fileno())
    except OSError as error:
        return error.errno
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)
    return None


def device_of(volume: Volume) -> str:
    """Return the loop device behind a volume. Raises `CommandFailed` if it is not mounted."""
    with open("/proc/self/mounts", encoding="utf-8") as mounts:
        for line in mounts:
            device, path = line.split()[:2]
            if path == volume.path:
                return device
    raise CommandFailed(f"{volume.path} is not mounted")
