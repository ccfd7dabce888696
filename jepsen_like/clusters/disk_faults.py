"""What becomes of a node's disk while the node runs on it: no room, or no writing at all.

* Full: one file takes every block that is left. Blocks are only reserved, so it takes no room on the machine's disk.
* Read-only: the file system is told that it found an error (`trigger_fs_error`) and does what it does then
  (`errors=remount-ro`): it ends its journal and refuses to write, also to files that are open. What was not fsynced is
  lost. To mend it is what people would do: unmount, check, mount.

Both are proved by a write that is refused. The functions block; processes must be gone before `repair`.

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
"""Exit code: there were errors, and they were corrected."""


def fill(volume: Volume) -> int:
    """Take all room that is left; how many bytes are taken. Again: also what was freed since. Raises `OSError` for
    anything but a full disk."""
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
    """Give it back. Safe to call again."""
    with suppress(FileNotFoundError):
        os.remove(os.path.join(volume.path, FILLER))


def turn_read_only(volume: Volume) -> None:
    """From now on. Raises `CommandFailed` where this kernel does not."""
    device = os.path.basename(device_of(volume))
    try:
        Path("/sys/fs/ext4", device, "trigger_fs_error").write_text("1\n")
    except OSError as error:
        raise CommandFailed(f"ext4 on {device} cannot be told that it found an error: {error.strerror}") from None


def repair(volume: Volume) -> None:
    """Unmount, check and mount it. Raises `CommandFailed` or `PowerLossUnavailable`."""
    volume.unmount()
    run("e2fsck", "-p", volume.image, accept=(E2FSCK_REPAIRED,))
    volume.mount()


def refusal(volume: Volume) -> int | None:
    """The error number with which a written and synced block is refused; None: it is taken."""
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
    """The loop device behind it. Raises `CommandFailed` where it is not mounted."""
    with open("/proc/self/mounts", encoding="utf-8") as mounts:
        for line in mounts:
            device, path = line.split()[:2]
            if path == volume.path:
                return device
    raise CommandFailed(f"{volume.path} is not mounted")
