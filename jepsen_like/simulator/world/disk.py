"""A disk that forgets what was not fsynced.

Each file is an inode with durable content and the operations since its last fsync (`inode.py`); names are in folders
whose changes are durable only after `fsync_directory` (`disk_names.py`); `sync_all` does both for all files. A process
crash keeps everything (the page cache survives it). A power failure keeps, of every unsynced write, all, nothing or a
prefix torn at 512 bytes, independently of the others (write-back has no order), and of the unsynced name changes a
prefix in their order (the metadata of a journalled file system is ordered). All random choices come from the generator
passed to `power_loss`.

A disk has `total_bytes` of space, in blocks; `occupy` takes the rest, as foreign files would: from then on each file
keeps its blocks, and removed or truncated ones are free again.

Faults that a test or a nemesis switches on: `full`, `full_below` (ENOSPC), `no_descriptors` (EMFILE for every call that
has to open something, before it does anything), `fail_fsync` (EIO once; the data is dropped and marked clean, as Linux
does), `flip` (bits are damaged in place), `rot` (the same, and the checker can still see the original content).

Paths and semantics are those of `raftlog.ports.Disk`; the same contract test runs on this disk and on the real one.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from raftlog.errors import DiskFailed, DiskFull, ResourceShortage
from raftlog.ports import Buffer, Space

from .disk_names import Names
from .inode import Inode

BLOCK_BYTES = 4096

__all__ = ["Inode", "SimDisk", "SimFile", "SimulatedCrash"]


class SimulatedCrash(BaseException):
    """The process died in the middle of a disk operation. The product must not catch it."""


class SimDisk:
    """One node's data folder. It belongs to no life: it survives crashes."""

    def __init__(self, total_bytes: int = 1 << 30) -> None:
        self._names = Names({})
        """Path → inode; None is a folder."""
        self._durable_names = Names({})
        self._name_changes: list[tuple[str, dict[str, Inode | None], tuple[str, ...]]] = []
        """(folder, names added, names removed), in the order of the changes."""
        self.rotten: list[Inode] = []
        """Files that were damaged while they may have been open; some may have been removed since."""
        self.full = False
        self.full_below = ""
        """Files whose paths begin with this cannot grow; empty: all can."""
        self.no_descriptors = False
        """The process has reached its limit of open files."""
        self.refused_opens = 0
        """Calls that were refused for lack of a descriptor."""
        self.descriptors_left: int | None = None
        """Number of further calls that get a descriptor; None: this fault is off."""
        self.total_bytes = total_bytes
        self._free_blocks: int | None = None
        """None: free blocks are not counted, and never run out."""
        self.fail_fsync = 0
        """Number of the next fsyncs that fail."""
        self.fsyncs = 0
        self.sync_alls = 0
        """Number of `sync_all` calls."""
        self.one_call = True
        """Whether `sync_all` covers everything; if not it does nothing, as on systems without such a call."""
        self._written_last: Inode | None = None
        self.crash_countdown = 0
        """The process dies in the n-th changing operation from now; 0: it does not."""

    # --- The port ---

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, bulk: bool = False) -> SimFile:
        self._take_descriptor()
        inode = self._names.get(path)
        if inode is None:
            if path in self._names:
                raise DiskFailed(f"{path} is a folder")
            if not (create or exclusive):
                raise FileNotFoundError(path)
            folder = _parent(path)
            if folder not in self._names:
                raise FileNotFoundError(folder)
            inode = Inode()
            self._change(folder, {path: inode}, ())
        elif exclusive:
            raise FileExistsError(path)
        return SimFile(self, inode, path)

    def exists(self, path: str) -> bool:
        return path in self._names

    def list(self, path: str) -> list[str]:
        self._take_descriptor()
        before = len(path) + 1 if path else 0
        return sorted(found[before:] for found in self._names.inside(path))

    def make_directory(self, path: str) -> None:
        if path and path not in self._names:
            self.make_directory(_parent(path))
            self._change(_parent(path), {path: None}, ())

    def rename(self, source: str, target: str) -> None:
        if source not in self._names:
            raise FileNotFoundError(source)
        moved = {target: self._names[source]}
        self._freed(self._names.get(target))
        removed = [source]
        if self._names[source] is None:
            for name in self._names.below(source):
                moved[target + name[len(source) :]] = self._names[name]
                removed.append(name)
        self._change(_parent(source), moved, tuple(removed))

    def remove(self, path: str) -> None:
        if path in self._names:
            if self._names[path] is None:
                self._take_descriptor()
            below = self._names.below(path) if self._names[path] is None else ()
            for gone in (path, *below):
                self._freed(self._names.get(gone))
            self._change(_parent(path), {}, (path, *below))

    def fsync_directory(self, path: str) -> None:
        self._take_descriptor()
        self._fsync_fault()
        kept = []
        for change in self._name_changes:
            folder, added, removed = change
            if folder == path:
                self._durable_names.change(added, removed)
            else:
                kept.append(change)
        self._name_changes = kept

    def read(self, path: str) -> bytes:
        self._take_descriptor()
        inode = self._names.get(path)
        if inode is None:
            raise FileNotFoundError(path)
        return bytes(inode.current)

    def replace(self, path: str, content: bytes) -> None:
        temporary = path + ".tmp"
        self.remove(temporary)
        file = self.open(temporary, create=True)
        try:
            file.pwritev([content], 0)
        except DiskFull:
            self.remove(temporary)
            raise
        file.fsync()
        self.rename(temporary, path)
        self.fsync_directory(_parent(path))

    def space(self) -> Space:
        free = self._free_blocks
        return Space(self.total_bytes if free is None else free * BLOCK_BYTES, self.total_bytes)

    def syncs_all(self, path: str) -> bool:
        if path not in self._names:
            raise FileNotFoundError(path)
        return self.one_call

    def sync_all(self) -> None:
        assert self.one_call, "`syncs_all` was not called"
        self.sync_alls += 1
        try:
            self._fsync_fault()
        except DiskFailed:
            # One file's data is dropped and marked clean, without naming it; the others' fate is open. Every open file
            # has lost its data.
            for inode in self._names.values():
                if inode is not None and inode.pending:
                    inode.losses += 1
            if self._written_last is not None:
                self._written_last.forget()
            raise
        for inode in self._names.values():
            if inode is not None:
                inode.fsync()
        for _, added, removed in self._name_changes:
            self._durable_names.change(added, removed)
        self._name_changes.clear()

    # --- Room ---

    def occupy(self, left_blocks: int = 0) -> None:
        """Leave this many blocks free and give all others to foreign files."""
        self._free_blocks = left_blocks

    @property
    def occupied(self) -> bool:
        return self._free_blocks is not None

    def vacate(self) -> None:
        """Make space unlimited again."""
        self._free_blocks = None

    def take_room(self, inode: Inode, end: int) -> None:
        """Take the blocks for growth to `end`. Raises `DiskFull` without taking any."""
        if self._free_blocks is None:
            return
        needed = _blocks(end) - _blocks(len(inode.current))
        if needed > self._free_blocks:
            raise DiskFull("simulated: no space left on device")
        self._free_blocks -= max(needed, 0)

    def give_room(self, inode: Inode, length: int) -> None:
        """Release the blocks of a truncation to `length`."""
        if self._free_blocks is not None:
            self._free_blocks += max(0, _blocks(len(inode.current)) - _blocks(length))

    def _used_blocks(self) -> int:
        return sum(_blocks(len(inode.current)) for inode in self._names.values() if inode is not None)

    def _freed(self, inode: Inode | None) -> None:
        if inode is not None:
            self.give_room(inode, 0)

    # --- Faults ---

    def power_loss(self, rng: random.Random) -> None:
        """Draw the fate of all unsynced writes and names."""
        used = self._used_blocks()
        inodes: dict[int, Inode] = {}
        for names in (self._names, self._durable_names):
            for name in sorted(names):
                inode = names[name]
                if inode is not None:
                    inodes.setdefault(id(inode), inode)
        for inode in inodes.values():
            inode.lose_power(rng)
        for _, added, removed in self._name_changes[: rng.randrange(0, len(self._name_changes) + 1)]:
            self._durable_names.change(added, removed)
        self._name_changes.clear()
        # A name whose folder did not survive is lost with it.
        kept = {name: inode for name, inode in self._durable_names.items() if _has_parents(name, self._durable_names)}
        self._durable_names, self._names = Names(kept), Names(kept)
        if self._free_blocks is not None:
            self._free_blocks = max(0, self._free_blocks + used - self._used_blocks())

    def flip(self, path: str, position: int, mask: int) -> None:
        """Flip bits, in the page cache and on the medium."""
        self.inode_of(path).flip(position, mask)

    def rot(self, path: str, position: int, mask: int) -> None:
        """Flip bits as `flip` does, but remember them: `turn` shows the original content, and hides it again."""
        inode = self.inode_of(path)
        inode.rots(position, mask)
        if inode not in self.rotten:
            self.rotten.append(inode)

    def turn(self) -> None:
        """Switch all damaged files between their original and their damaged content."""
        for inode in self.rotten:
            inode.turn()

    def rotten_files(self) -> Sequence[str]:
        """Return the damaged files that still exist."""
        rotten = [inode for inode in self.rotten if inode.rot]
        return sorted(name for name, inode in self._names.items() if inode is not None and inode in rotten)

    def is_durable(self, path: str) -> bool:
        """Return whether the file would survive a power failure now, unchanged under this name."""
        inode = self._names.get(path)
        return inode is not None and not inode.pending and self._durable_names.get(path) is inode

    def durable_file(self, path: str) -> Inode | None:
        """Return the file that would survive a power failure now under this name, with its durable content."""
        return self._durable_names.get(path)

    def durable_files(self, folder: str) -> Sequence[tuple[str, Inode]]:
        """Return the same for all files in a folder, with their paths."""
        names = self._durable_names
        return [(path, inode) for path in names.inside(folder) if (inode := names[path]) is not None]

    def files(self) -> dict[str, int]:
        """Return path → size, for tests and nemeses."""
        return {name: len(inode.current) for name, inode in sorted(self._names.items()) if inode is not None}

    # --- Inside ---

    def _take_descriptor(self) -> None:
        """Take a descriptor, for a moment or for a file that stays open."""
        if self.descriptors_left:
            self.descriptors_left -= 1
        elif self.no_descriptors or self.descriptors_left is not None:
            self.refused_opens += 1
            raise ResourceShortage("simulated: too many open files")

    def operation(self) -> None:
        """Mark a change on disk: the place where a process may die."""
        if self.crash_countdown:
            self.crash_countdown -= 1
            if not self.crash_countdown:
                raise SimulatedCrash

    def inode_of(self, path: str) -> Inode:
        """Return the content of the file that has this name now."""
        inode = self._names[path]
        assert inode is not None, f"{path} is a folder"
        return inode

    def _change(self, folder: str, added: dict[str, Inode | None], removed: tuple[str, ...]) -> None:
        self.operation()
        self._names.change(added, removed)
        self._name_changes.append((folder, added, removed))

    def _fsync_fault(self) -> None:
        self.operation()
        self.fsyncs += 1
        if self.fail_fsync:
            self.fail_fsync -= 1
            raise DiskFailed("simulated fsync failure")

    def wrote(self, inode: Inode) -> None:
        """Record that the last write was to this file."""
        self._written_last = inode

    def fsync_last_write(self, inode: Inode) -> None:
        try:
            self._fsync_fault()
        except DiskFailed:
            inode.forget()
            raise
        inode.fsync_last_write()

    def fsync_inode(self, inode: Inode) -> None:
        try:
            self._fsync_fault()
        except DiskFailed:
            inode.forget()
            raise
        inode.fsync()


def _blocks(length: int) -> int:
    return -(-length // BLOCK_BYTES)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _has_parents(path: str, names: Mapping[str, Inode | None]) -> bool:
    parent = _parent(path)
    return not path or (parent in names and _has_parents(parent, names))


class SimFile:
    """An open file; it survives the removal of its name, as on any POSIX system."""

    def __init__(self, disk: SimDisk, inode: Inode, path: str) -> None:
        self._disk = disk
        self.path = path
        """The path under which it was opened."""
        self.inode = inode
        self._losses = inode.losses
        self._closed = False

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        self._check_open()
        disk = self._disk
        if disk.full or (disk.full_below and self.path.startswith(disk.full_below)):
            raise DiskFull("simulated: no space left on device")
        data = b"".join(buffers)
        disk.take_room(self.inode, max(position + len(data), len(self.inode.current)))
        disk.operation()
        self.inode.write(position, data)
        disk.wrote(self.inode)
        return len(data)

    def pwritev_stable(self, buffers: Sequence[Buffer], position: int) -> int:
        written = self.pwritev(buffers, position)
        self._disk.fsync_last_write(self.inode)
        return written

    def pread(self, length: int, position: int) -> bytes:
        self._check_open()
        return bytes(self.inode.current[position : position + length])

    def pread_cached(self, length: int, position: int) -> bytes | None:
        return self.pread(length, position)

    def size(self) -> int:
        self._check_open()
        return len(self.inode.current)

    def allocate(self, length: int) -> None:
        have = self.size()
        if have < length:
            self.pwritev([bytes(length - have)], have)

    def truncate(self, length: int) -> None:
        self._check_open()
        self._disk.operation()
        if length < len(self.inode.current):
            self._disk.give_room(self.inode, length)
        else:
            self._disk.take_room(self.inode, length)
        self.inode.truncate(length)

    def fsync(self) -> None:
        self._check_open()
        self._disk.fsync_inode(self.inode)

    def lose(self, why: str) -> None:
        """Do nothing: the page cache has dropped its data already, and the disk knows the open files."""

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        assert not self._closed, "use after close"
        if self.inode.losses != self._losses:
            raise DiskFailed(f"simulated: {self.path} may have lost what was written")
