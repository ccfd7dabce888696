"""A disk whose power can be cut: data that was written to it but not fsynced is lost.

Killing a process loses nothing that it wrote: the page cache belongs to the kernel. To lose what only an fsync would
have kept, each node gets a `Volume`, an ext4 image mounted through a loop device, and `cut` shuts that file system down
under its users (`EXT4_IOC_SHUTDOWN`): from that instant on nothing reaches the disk, and the page cache is dropped at
the unmount. Mounting it again replays the file system's journal, as after a power failure.

Data that was not fsynced may still have reached the disk, in any order. `Survivors` says which part does:

* NOTHING: neither data nor the file system's journal is written out. Only what was synced is there.
* NAMES: the journal is written out: files that were created, renamed or removed since are so, without their data.
* PARTS: some 4 KiB stretches of some files are written out first, then the journal: files end with holes of zeros, and
  have later bytes without earlier ones.

A fault without effect proves nothing, so each cut brings its proof. One witness file is written and synced when the
disk is mounted (no later: an fsync may also write out what others did not sync), another is written right before the
cut; after the next mount the first must be whole and the second lost (`FaultDidNotBite` otherwise). The loss of the
processes themselves is the size of each file at the instant of the cut, which the kernel still knows afterwards, minus
its size after the mount. Holes are not counted, so the number is a lower bound.

After a real power failure the whole computer is dark, and no process observes the failed disk. So the disk's users are
stopped before the cut (`hold`), every thread outside the kernel, and killed after it. This is necessary: a thread that
waits in an fsync while ext4 is shut down may get a success although nothing reached the disk (the transaction that it
waits for is neither running nor committing any more, which the kernel takes for done), and the process would
acknowledge that in the milliseconds it has left.

It needs root, loop devices, ext4 and its shutdown call; `missing_capability` tries all of it on a small image and names
what is missing. The mounts of a dead process are removed by the next `Volumes`.

Source of the shutdown call: Linux, `fs/ext4/ioctl.c` and xfstests' `src/godown.c`.
"""

from __future__ import annotations

import ctypes
import enum
import fcntl
import glob
import os
import random
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType

EXT4_IOC_SHUTDOWN = 0x8004587D
LOG_FLUSH, NO_LOG_FLUSH = 1, 2
WITNESS_BYTES = 64 * 1024
SYNCED, LOST = "witness-synced", "witness-lost"
PAGE = 4096
SYNC_FILE_RANGE_ALL = 1 | 2 | 4
"""Wait for writes in progress, start the write, and wait for it (sync_file_range(2))."""

IMAGE_BYTES = 256 * 1024 * 1024
MOUNT_OPTIONS = "loop,noatime,commit=900,errors=remount-ro"
FOLDER_PREFIX = "raftlog-power-"
COMMAND_SECONDS = 60.0
HOLD_SECONDS = 5.0
HOLD_POLL_SECONDS = 0.0002
STANDING = frozenset("TtDZX")
"""Thread states of `/proc/<pid>/stat` that count as held: stopped, traced, waiting in the kernel for a disk, dead."""


class PowerLossUnavailable(Exception):
    """This machine cannot cut a disk's power; the text names what is missing."""


class FaultDidNotBite(Exception):
    """The cut lost nothing, or lost data that was synced: the round is void, whatever it showed."""


class Survivors(enum.Enum):
    """How much of the data that was not fsynced reaches the disk; the module's docstring explains each."""

    NOTHING = "nothing"
    NAMES = "names"
    PARTS = "parts"


@dataclass(frozen=True)
class Lost:
    """The proof that a cut had its effect, in bytes that were written and not synced."""

    witness: int
    files: dict[str, int]
    """Path below `data` → the bytes by which it is shorter than at the cut; the file may be gone."""


class Volume:
    """One disk. `path` is its mount point, from `Volumes.add` to `Volumes.close`; `data` is the folder for its user."""

    def __init__(self, image: str, path: str) -> None:
        self.image = image
        self.path = path
        self.is_mounted = False
        self._at_the_cut: dict[str, int] | None = None
        self._flag = NO_LOG_FLUSH

    def make(self, size_bytes: int = IMAGE_BYTES) -> None:
        """Create a new, empty file system and mount it. Raises `PowerLossUnavailable`."""
        with open(self.image, "wb") as file:
            file.truncate(size_bytes)  # sparse
        _run("mkfs.ext4", "-q", "-F", "-m", "0", "-b", str(PAGE), self.image)
        os.makedirs(self.path, exist_ok=True)
        self.mount()
        os.mkdir(self.data)
        self._plant_synced_witness()

    @property
    def data(self) -> str:
        """The folder on the disk for its user, empty at first."""
        return os.path.join(self.path, "data")

    def mount(self) -> None:
        """Mount the disk, which replays its journal.

        The commit interval of the journal is very long, so that the kernel writes out nothing by itself that was not
        synced. A file system that finds an error turns read-only.
        """
        _run("mount", "-t", "ext4", "-o", MOUNT_OPTIONS, self.image, self.path)
        self.is_mounted = True

    def _plant_synced_witness(self) -> None:
        with _opened(os.path.join(self.path, SYNCED), os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
            os.write(file, b"s" * WITNESS_BYTES)
            os.fsync(file)
        with _opened(self.path, os.O_RDONLY) as folder:
            os.fsync(folder)

    def unmount(self) -> None:
        """Unmount the disk and release its loop device. Every process that had files open there must have ended."""
        if self.is_mounted:
            _run("umount", self.path)
            self.is_mounted = False

    def cut(self, survivors: Survivors, rng: random.Random, users: Iterable[int] = ()) -> None:
        """Cut the power now.

        `users`: the processes that write there. They are stopped: kill them, then call `restore`. Raises
        `FaultDidNotBite` if one of them does not stop.
        """
        self.aim(survivors, rng)
        hold(users)
        self.shut()

    def aim(self, survivors: Survivors, rng: random.Random) -> None:
        """Do the slow preparations right before `shut`, so that several disks can be shut within a millisecond."""
        with _opened(os.path.join(self.path, LOST), os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
            os.write(file, b"l" * WITNESS_BYTES)
        if survivors is Survivors.PARTS:
            self._write_out_parts(rng)
        self._flag = NO_LOG_FLUSH if survivors is Survivors.NOTHING else LOG_FLUSH

    def shut(self) -> None:
        """Cut the power. The users of the disk must be held; the module's docstring says why."""
        files = self.files()
        with _opened(self.path, os.O_RDONLY) as folder:
            fcntl.ioctl(folder, EXT4_IOC_SHUTDOWN, struct.pack("I", self._flag))
        self._at_the_cut = sizes(files)

    def restore(self) -> Lost:
        """Restore the power: mount what survived, and return what was lost. Raises `FaultDidNotBite`."""
        self.unmount()
        before, self._at_the_cut = self._at_the_cut, None
        self.mount()
        if before is None:
            raise FaultDidNotBite(f"{self.path} was not cut")
        try:
            witness = self._read_witness()
        finally:
            self._plant_synced_witness()
        after = sizes(list(before))
        shorter = {path: size - after.get(path, 0) for path, size in before.items() if after.get(path, 0) < size}
        return Lost(witness, {os.path.relpath(path, self.data): count for path, count in shorter.items()})

    def files(self) -> list[str]:
        """Return the path of every file below `data`."""
        return sorted(os.path.join(folder, name) for folder, _, names in os.walk(self.data) for name in names)

    # --- Inside ---

    def _read_witness(self) -> int:
        """Check and remove both witness files after a cut; return the bytes lost."""
        synced, lost = _taken(os.path.join(self.path, SYNCED)), _taken(os.path.join(self.path, LOST))
        if synced != b"s" * WITNESS_BYTES:
            raise FaultDidNotBite(f"{self.path} lost what was synced: this is no power failure but another fault")
        kept = lost.count(b"l")
        if kept:
            raise FaultDidNotBite(f"{self.path} kept {kept} bytes that were not synced")
        return WITNESS_BYTES

    def _write_out_parts(self, rng: random.Random) -> None:
        """Write out a stretch near the end, where unsynced data lies, of about half of the files."""
        for path in self.files():
            if rng.random() < 0.5:
                continue
            with suppress(FileNotFoundError), _opened(path, os.O_RDONLY) as file:
                pages = os.fstat(file).st_size // PAGE + 1
                first = rng.randrange(max(pages - 16, 0), pages)
                _sync_file_range(file, first * PAGE, rng.randrange(1, 17) * PAGE)


class Volumes:
    """The disks of one cluster, in a folder of their own. As a context manager, it unmounts them at its end."""

    def __init__(self) -> None:
        """Raises `PowerLossUnavailable`."""
        if os.geteuid() != 0:
            raise PowerLossUnavailable("mounting an image needs root")
        remove_leftovers()
        self.folder = tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{os.getpid()}-")
        self.volumes: list[Volume] = []

    def add(self, path: str, size_bytes: int = IMAGE_BYTES) -> Volume:
        """Create a disk of this size, mounted at this path below `folder`. Raises `PowerLossUnavailable`."""
        volume = Volume(os.path.join(self.folder, f"{len(self.volumes)}.img"), os.path.join(self.folder, path))
        volume.make(size_bytes)
        self.volumes.append(volume)
        return volume

    def close(self) -> None:
        """Unmount all disks and delete the folder. The processes that use them must have ended."""
        _remove(self.folder)

    def __enter__(self) -> Volumes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def hold(pids: Iterable[int]) -> None:
    """Stop these processes; none of their threads runs any further, except what it is doing in the kernel.

    Processes that have ended are ignored. Raises `FaultDidNotBite` if one does not stop.
    """
    moving = list(pids)
    for pid in moving:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + HOLD_SECONDS
    while moving := [pid for pid in moving if not _stands_still(pid)]:
        if time.monotonic() > deadline:
            raise FaultDidNotBite(f"processes {moving} did not stop within {HOLD_SECONDS:.0f} s")
        time.sleep(HOLD_POLL_SECONDS)


def _stands_still(pid: int) -> bool:
    """Return whether every thread is stopped, or in a system call that it does not leave before it stops."""
    for stat in glob.glob(f"/proc/{pid}/task/*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError), open(stat, encoding="ascii", errors="replace") as file:
            if file.read().rpartition(")")[2].split()[0] not in STANDING:
                return False
    return True


def sizes(paths: list[str]) -> dict[str, int]:
    """Return path → size in bytes, for the files that exist."""
    found = {}
    for path in paths:
        with suppress(FileNotFoundError):
            found[path] = os.stat(path).st_size
    return found


def missing_capability() -> str | None:
    """Return what this machine lacks for cutting a disk's power, or None; tried on a small image, with its proof."""
    try:
        with Volumes() as volumes:
            volume = volumes.add("probe", 8 * 1024 * 1024)
            volume.cut(Survivors.NOTHING, random.Random(0))
            volume.restore()
    except (PowerLossUnavailable, FaultDidNotBite) as error:
        return str(error)
    except OSError as error:
        return f"this kernel cannot shut down a mounted ext4: {error}"
    return None


def remove_leftovers() -> None:
    """Unmount and delete the disks of dead processes. Disks that their children still use wait for the next call."""
    parent = tempfile.gettempdir()
    for name in os.listdir(parent):
        pid = name.removeprefix(FOLDER_PREFIX).partition("-")[0]
        if name.startswith(FOLDER_PREFIX) and pid.isdecimal() and not _is_alive(int(pid)):
            with suppress(PowerLossUnavailable):
                _remove(os.path.join(parent, name))


def _is_alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def _remove(folder: str) -> None:
    with open("/proc/self/mounts", encoding="utf-8") as mounts:
        mounted = [line.split()[1] for line in mounts]
    for path in mounted:
        if path.startswith(folder + os.sep):
            _run("umount", path)
    shutil.rmtree(folder, ignore_errors=True)


def _taken(path: str) -> bytes:
    """Return the content of a file and remove it."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        return b""
    os.remove(path)
    return content


@contextmanager
def _opened(path: str, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _sync_file_range(descriptor: int, offset: int, size: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    offset_c, size_c = ctypes.c_int64(offset), ctypes.c_int64(size)
    if libc.sync_file_range(descriptor, offset_c, size_c, SYNC_FILE_RANGE_ALL):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMMAND_SECONDS)
    except FileNotFoundError:
        raise PowerLossUnavailable(f"{command[0]} is not installed") from None
    except subprocess.CalledProcessError as error:
        raise PowerLossUnavailable(f"{' '.join(command)}: {error.stderr.strip()}") from None
    except subprocess.TimeoutExpired:
        raise PowerLossUnavailable(f"{' '.join(command)}: not done within {COMMAND_SECONDS:.0f} s") from None
