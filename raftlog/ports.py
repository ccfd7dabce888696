"""What a shell may touch: the disk, the clock, timers, worker threads, randomness and links to other brokers.

Cores (plain classes: an event and the time in, effects out) touch none of these. Shells get them by constructor and
nothing else, so that the same shells run in production (asyncio, threads, ext4) and in the simulator (a heap of
events, virtual time, a disk that forgets what was not fsynced). All of it is callback style, no coroutine: asyncio
begins above, in `raftlog/broker/` and `http_api/`.

Each port but `Logger` has one contract test in `tests/contracts/` that the real and the simulated implementation both
pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

Buffer: TypeAlias = bytes | bytearray | memoryview

T = TypeVar("T")


class Clock(Protocol):
    """Two clocks: intervals come from the monotonic one, record timestamps from the wall."""

    def monotonic(self) -> float:
        """Seconds since some fixed point. Never goes back."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970. May jump either way."""
        ...


class Timer(Protocol):
    """A call that is due later."""

    def cancel(self) -> None:
        """The call will not happen. Cancelling twice, or after it happened, does nothing."""
        ...


class Scheduler(Protocol):
    """Calls on the one thread that owns the cores. Calls due at the same instant happen in the order they were made."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """After the present event, before any later one."""
        ...

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        """`delay` seconds from now."""
        ...


class Worker(Protocol):
    """Threads for what blocks: fsync, cold reads, compression. Results come back on the scheduler's thread."""

    def submit(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Run `work` elsewhere, then call `done(result, None)` or `done(None, error)` on the scheduler's thread."""
        ...


class Random(Protocol):
    """The part of `random.Random` that raftlog uses; a `random.Random` is one."""

    def random(self) -> float: ...
    def uniform(self, a: float, b: float) -> float: ...
    def randrange(self, start: int, stop: int) -> int: ...
    def randbytes(self, n: int) -> bytes: ...


class File(Protocol):
    """One open file. Calls raise a `DiskError`; nothing is retried inside. `DiskFull` and `ResourceShortage`
    lose nothing, and no `fsync` raises them."""

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        """Write all buffers one after the other from `position`; returns the bytes written, which is all of them."""
        ...

    def pwritev_stable(self, buffers: Sequence[Buffer], position: int) -> int:
        """As `pwritev`, and these bytes survive a power loss once it returns, as after `fsync`; what was written before
        need not. `DiskHindered` only where it is certain that nothing was written; else the file is lost, as by a
        failed `fsync`."""
        ...

    def pread(self, length: int, position: int) -> bytes:
        """Up to `length` bytes from `position`; fewer only at the end of the file."""
        ...

    def pread_cached(self, length: int, position: int) -> bytes | None:
        """As `pread`, where that needs no wait for the disk; None where it would. A disk that cannot tell reads."""
        ...

    def size(self) -> int:
        """Bytes in the file."""
        ...

    def truncate(self, length: int) -> None:
        """Cut to `length` bytes. Durable after the next `fsync`."""
        ...

    def allocate(self, length: int) -> None:
        """The file has at least `length` bytes, and room on the disk for each of the first `length`; what it held is
        kept, the rest reads as zeros. `DiskFull` where there is no such room; the file may be longer then than it
        was."""
        ...

    def fsync(self) -> None:
        """What was written before this call survives a power loss once it returns. If it fails, the file is lost:
        the kernel may have dropped the data and marked it clean, so calling again proves nothing."""
        ...

    def lose(self, why: str) -> None:
        """A `Disk.sync_all` that was to cover this file failed: it is lost, as by a failed `fsync`. A disk does so by
        itself with open files that have something no fsync covers; others know what they were told is durable."""
        ...

    def fileno(self) -> int:
        """The descriptor, for `sendfile`. -1 where there is none (simulated disks)."""
        ...

    def close(self) -> None: ...


class Space(NamedTuple):
    """Room on the file system that holds a data folder, in bytes."""

    free: int
    """What this process may still take."""
    total: int
    reserve_whole: bool = True
    """Nothing of a reserve for what makes room is in use."""


class Disk(Protocol):
    """The data folder. Paths are strings below its root, with `/` between parts."""

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, bulk: bool = False) -> File:
        """For reading and writing. `create` makes it where absent; with `exclusive` it must be absent. A new name is
        durable after `fsync_directory` of its folder. An open file outlives its removal and its renaming. `bulk`: what
        is written to it grows with the load, and leaves alone any reserve of room.

        Raises `FileNotFoundError` where absent (without `create`) and `FileExistsError` (with `exclusive`)."""
        ...

    def exists(self, path: str) -> bool:
        """Raises `DiskError` where that cannot be told."""
        ...

    def list(self, path: str) -> list[str]:
        """Names in a folder, sorted; empty where the folder is absent."""
        ...

    def make_directory(self, path: str) -> None:
        """With its parents; none of them need be absent. Durable after `fsync_directory` of the parent."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Replaces `target` (a file). Durable after `fsync_directory`."""
        ...

    def remove(self, path: str) -> None:
        """A file, or a folder with all that is in it. Absent is fine."""
        ...

    def fsync_directory(self, path: str) -> None: ...

    def read(self, path: str) -> bytes:
        """A whole small file. Raises `FileNotFoundError` where absent."""
        ...

    def replace(self, path: str, content: bytes) -> None:
        """The file has the old content or the new one, whatever happens; the new one once this returns: written to a
        temporary name, fsynced, renamed, the folder fsynced."""
        ...

    def space(self) -> Space:
        """How much room there is. Blocks. Raises `DiskFailed`."""
        ...

    def syncs_all(self, path: str) -> bool:
        """Whether `sync_all` covers what lies in this folder, and can be relied on. Raises `FileNotFoundError` where
        absent."""
        ...

    def sync_all(self) -> None:
        """As an `fsync` of each file and folder below the root for which `syncs_all`: what was written, cut, made,
        renamed or removed before this call survives a power loss once it returns. One call for any number of them,
        which waits for what others have written to the same disk, too.

        Raises `DiskFailed`, and which of them are lost nobody knows. Every open file with something that was not
        fsynced is lost from then on (`File.lose`), also those of others than the caller: a later call that goes well
        says nothing of what this one dropped."""
        ...


@dataclass(frozen=True, slots=True)
class FileRegion:
    """Bytes of a file that can go to a socket without passing through Python.

    Whoever holds a region holds the file open; `release` is called exactly once, when the bytes were sent or given up.
    """

    file: File
    position: int
    length: int
    release: Callable[[], None]


Part: TypeAlias = Buffer | FileRegion
"""A piece of a message: bytes in memory, or a region of a file."""


def part_length(part: Part) -> int:
    """Bytes in a piece of a message."""
    return part.length if isinstance(part, FileRegion) else memoryview(part).nbytes


class Link(Protocol):
    """One ordered stream of messages to and from a peer: FIFO, at most once, gone for good when it closes.

    The owner gets `on_message(link, message)` and, once, `on_closed(link)`; a reconnect is another `Link`.
    """

    @property
    def peer(self) -> int:
        """Broker id at the other end, as the handshake proved it."""
        ...

    def send(self, parts: Sequence[Part]) -> None:
        """Queue one message made of these parts, which must not change until sent. Never blocks; the receiver's
        credits (not this queue) bound what is in flight. A closed link drops it (and releases its regions)."""
        ...

    def close(self) -> None:
        """Drop the connection. `on_closed` follows."""
        ...


class LinkHandler(Protocol):
    """What the owner of links is told."""

    def on_opened(self, link: Link) -> None: ...

    def on_message(self, link: Link, message: memoryview) -> None: ...

    def on_closed(self, link: Link) -> None: ...


class Logger(Protocol):
    """Structured log lines; a structlog logger is one."""

    def info(self, event: str, **fields: Any) -> Any: ...
    def warning(self, event: str, **fields: Any) -> Any: ...
    def error(self, event: str, **fields: Any) -> Any: ...
