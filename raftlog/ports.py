"""The interfaces to the environment: disk, clock, timers, worker threads, randomness and links to other brokers.

Cores are plain classes that take an event and the time, and return effects; they use none of these ports. Shells get
the ports through their constructors and use nothing else, so that the same shells run in production (asyncio, threads,
ext4) and in the simulator (a heap of events, virtual time, a disk that forgets what was not fsynced). All ports use
callbacks, no coroutines: asyncio begins above, in `raftlog/broker/` and `http_api/`.

Each port but `Logger` has one contract test in `tests/contracts/`, which the real and the simulated implementation both
pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from .errors import RaftlogError

Buffer: TypeAlias = bytes | bytearray | memoryview

T = TypeVar("T")

Answer: TypeAlias = Callable[[T | RaftlogError], None]
"""A callback for the outcome of an operation, called exactly once: with the result, or with the error that ended it."""


class Clock(Protocol):
    """Two clocks: the monotonic one for intervals, the wall clock for record timestamps."""

    def monotonic(self) -> float:
        """Return seconds since a fixed point. The value never goes back."""
        ...

    def wall_ms(self) -> int:
        """Return milliseconds since 1970. The value may jump either way."""
        ...


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancel the call. A second cancel, or one after the call happened, does nothing."""
        ...


class Scheduler(Protocol):
    """Calls on the one thread that owns the cores. Calls that are due at the same instant happen in the order of
    scheduling."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call after the current event and before any later one."""
        ...

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        """Call in `delay` seconds."""
        ...


class Worker(Protocol):
    """Threads for blocking work: fsync, cold reads, compression. Results are delivered on the scheduler's thread."""

    def submit(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Run `work` on another thread, then call `done` on the scheduler's thread with (result, None) or (None,
        error)."""
        ...


class Random(Protocol):
    """The part of `random.Random` that raftlog uses; a `random.Random` is one."""

    def random(self) -> float: ...
    def uniform(self, a: float, b: float) -> float: ...
    def randrange(self, start: int, stop: int) -> int: ...
    def randbytes(self, n: int) -> bytes: ...


class File(Protocol):
    """One open file. Calls raise a `DiskError`, and nothing is retried inside.

    `DiskFull` and `ResourceShortage` lose nothing, and no `fsync` raises them.
    """

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        """Write all buffers, one after the other, from `position`. Return the number of bytes written: all of them."""
        ...

    def pwritev_stable(self, buffers: Sequence[Buffer], position: int) -> int:
        """Write like `pwritev`, and make these bytes, but not earlier writes, survive a power loss as after an `fsync`.

        Raises `DiskHindered` only if certainly nothing was written. After any other error the file is lost, as after a
        failed `fsync`.
        """
        ...

    def pread(self, length: int, position: int) -> bytes:
        """Read up to `length` bytes from `position`. The result is shorter only at the end of the file."""
        ...

    def pread_cached(self, length: int, position: int) -> bytes | None:
        """Read like `pread` if that needs no wait for the disk; otherwise return None. Some disks always read."""
        ...

    def size(self) -> int:
        """Return the size of the file in bytes."""
        ...

    def truncate(self, length: int) -> None:
        """Cut the file to `length` bytes. The cut is durable after the next `fsync`."""
        ...

    def allocate(self, length: int) -> None:
        """Extend the file to at least `length` bytes, with disk space for each of the first `length`.

        Existing content is kept, the rest reads as zeros. Raises `DiskFull` if there is no space; the file may be
        longer than before in that case.
        """
        ...

    def fsync(self) -> None:
        """Make everything written before this call survive a power loss.

        If it fails, the file is lost: the kernel may have dropped the data and marked it clean, so a second call proves
        nothing.
        """
        ...

    def lose(self, why: str) -> None:
        """Mark the file as lost, as after a failed `fsync`: a `Disk.sync_all` that should have covered it failed.

        A disk does this itself for open files with data that no fsync covers. Other callers use it for data that they
        consider durable.
        """
        ...

    def fileno(self) -> int:
        """Return the descriptor for `sendfile`; -1 if there is none (simulated disks)."""
        ...

    def close(self) -> None: ...


class Space(NamedTuple):
    """Space on the file system that holds a data folder, in bytes."""

    free: int
    """Space that this process may still use."""
    total: int
    reserve_whole: bool = True
    """Whether the reserve for operations that free space is untouched."""


class Disk(Protocol):
    """The data folder. Paths are strings below its root, with `/` between parts."""

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, bulk: bool = False) -> File:
        """Open a file for reading and writing.

        `create` creates a missing file; with `exclusive` the file must not exist. A new name is durable after
        `fsync_directory` of its folder. An open file survives its removal and renaming. `bulk` marks a file whose size
        grows with the load; its writes do not use the space reserve.

        Raises `FileNotFoundError` if the file does not exist (without `create`), and `FileExistsError` (with
        `exclusive`).
        """
        ...

    def exists(self, path: str) -> bool:
        """Return whether the path exists. Raises `DiskError` if that cannot be determined."""
        ...

    def list(self, path: str) -> list[str]:
        """Return the names in a folder, sorted; empty if the folder does not exist."""
        ...

    def make_directory(self, path: str) -> None:
        """Create a folder and its missing parents. Durable after `fsync_directory` of the parent."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename a file, replacing `target`. Durable after `fsync_directory`."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with its content. A missing path is no error."""
        ...

    def fsync_directory(self, path: str) -> None: ...

    def read(self, path: str) -> bytes:
        """Read a whole small file. Raises `FileNotFoundError` if it does not exist."""
        ...

    def replace(self, path: str, content: bytes) -> None:
        """Replace the content of a file atomically: after a crash the file has either the old content or the new one.

        The content is written to a temporary name, fsynced and renamed; then the folder is fsynced. The new content is
        durable once this returns.
        """
        ...

    def space(self) -> Space:
        """Return the space on the disk. Blocks. Raises `DiskFailed`."""
        ...

    def syncs_all(self, path: str) -> bool:
        """Return whether `sync_all` reliably covers the content of this folder.

        Raises `FileNotFoundError` if the folder does not exist.
        """
        ...

    def sync_all(self) -> None:
        """Make every earlier change below the root survive a power loss, in the folders for which `syncs_all` holds.

        The changes are writes, cuts, creations, renamings and removals. One call covers any number of files. It also
        waits for other processes' writes to the same disk.

        Raises `DiskFailed`, which does not say which files are affected. From then on every open file with data that
        was not fsynced is lost (`File.lose`), including files of other callers: a later successful call says nothing
        about what this one dropped.
        """
        ...


@dataclass(frozen=True, slots=True)
class FileRegion:
    """Bytes of a file that can go to a socket without passing through Python.

    The holder of a region keeps the file open. `release` is called exactly once, when the bytes were sent or given up.
    """

    file: File
    position: int
    length: int
    release: Callable[[], None]


Part: TypeAlias = Buffer | FileRegion
"""A piece of a message: bytes in memory, or a region of a file."""


def part_length(part: Part) -> int:
    """Return the number of bytes in a piece of a message."""
    return part.length if isinstance(part, FileRegion) else memoryview(part).nbytes


def behind(views: Iterable[memoryview], done: int) -> list[memoryview]:
    """Return the rest of the buffers after the first `done` bytes, which were written or sent."""
    left = []
    for view in views:
        if done < view.nbytes:
            left.append(view[done:])
        done = max(0, done - view.nbytes)
    return left


def release_regions(parts: Iterable[Part]) -> None:
    """Release every file region of a message that is given up."""
    for part in parts:
        if isinstance(part, FileRegion):
            part.release()


class Link(Protocol):
    """One ordered stream of messages to and from a peer: FIFO, at most once, and final when it closes.

    The owner gets `on_message(link, message)` and, once, `on_closed(link)`. A reconnect creates another `Link`.
    """

    @property
    def peer(self) -> int:
        """Broker id at the other end, as the handshake proved it."""
        ...

    def send(self, parts: Sequence[Part]) -> None:
        """Queue one message made of these parts, which must not change until sent.

        Never blocks: the receiver's credits, not this queue, bound the bytes in flight. A closed link drops the message
        and releases its regions.
        """
        ...

    def close(self) -> None:
        """Drop the connection. `on_closed` follows."""
        ...


class LinkHandler(Protocol):
    """The callbacks of a link's owner."""

    def on_opened(self, link: Link) -> None: ...

    def on_message(self, link: Link, message: memoryview) -> None: ...

    def on_closed(self, link: Link) -> None: ...


class Logger(Protocol):
    """Structured logging; a structlog logger implements it."""

    def info(self, event: str, **fields: Any) -> Any: ...
    def warning(self, event: str, **fields: Any) -> Any: ...
    def error(self, event: str, **fields: Any) -> Any: ...
