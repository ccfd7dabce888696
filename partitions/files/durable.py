"""Work that must be durable step by step, alone or many at once.

Such work is a generator: between two of its steps it yields a `Durable`, which says what must survive a power loss
before the next step begins. Run alone, it has just that fsynced. Run together, each is brought to its next barrier,
then one `Disk.sync_all` is the barrier of all. So a thousand logs take as many calls as the one with the most barriers,
and not as many as they have files.

* A failed barrier is raised where the generator waits at it. If the barrier was one log's own, it fails that log; if it
  was shared, it fails every log that waited for it, since the disk does not say whose data is lost (S1, S9). Neither is
  retried.
* An error that a generator raises by itself is its own: the others continue.
* Work that runs together keeps no file open between two steps but the segments themselves: a thousand times four small
  files are more descriptors than a process may have.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

import msgspec

from raftlog.errors import DiskError, DiskFailed
from raftlog.ports import Disk, File
from raftlog.system.disk import TEMPORARY_SUFFIX

TOGETHER_MIN = 32
"""From this number of logs on, one call for all is worth it: it also waits for what others wrote to the same disk."""

TOGETHER_MAX = 256
"""More run in several rounds: no log waits for the work of thousands, and the memory of a round is bounded."""

T = TypeVar("T")


class Durable(msgspec.Struct, frozen=True):
    """A barrier: the data written to these files, and the names in these folders."""

    files: Sequence[File] = ()
    folders: Sequence[str] = ()


Steps: TypeAlias = Generator[Durable, None, T]


def worth_one_call(count: int) -> bool:
    """Whether `count` logs should be synced together."""
    return count >= TOGETHER_MIN


def alone(disk: Disk, steps: Steps[T]) -> T:
    """Run the work to its end, with the fsyncs that it names. Blocks. Raises its errors."""
    failed: DiskError | None = None
    while True:
        try:
            due = next(steps) if failed is None else steps.throw(failed)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        try:
            failed = None
            _fsync(disk, due)
        except DiskError as error:
            failed = error


def together(disk: Disk, works: Sequence[Steps[T]]) -> list[T | Exception]:
    """Run all works to their ends, with one call for each barrier, and return their results or errors. Blocks.

    All of it lies where `disk.syncs_all`.
    """
    outcomes: list[T | Exception | None] = [None] * len(works)
    waiting: dict[int, Durable] = dict.fromkeys(range(len(works)), Durable())
    failed = ""
    while waiting:
        for number in list(waiting):
            steps = works[number]
            try:
                # Each gets an error of its own: errors live as long as their logs, and each has its traceback.
                waiting[number] = steps.throw(DiskFailed(failed)) if failed else next(steps)
                continue
            except StopIteration as end:
                outcomes[number] = end.value
            except Exception as error:  # noqa: BLE001  it is one log's, and its owner's to judge
                outcomes[number] = error
            del waiting[number]
        failed = _sync_all(disk, waiting.values()) if waiting else ""
    return outcomes  # type: ignore[return-value]


def _fsync(disk: Disk, due: Durable) -> None:
    for file in due.files:
        file.fsync()
    for folder in due.folders:
        disk.fsync_directory(folder)


def _sync_all(disk: Disk, waiting: Iterable[Durable]) -> str:
    """Return the error text, empty on success."""
    try:
        disk.sync_all()
    except DiskFailed as error:
        for due in waiting:
            for file in due.files:
                file.lose(error.detail)
        return error.detail
    return ""


def replaced(disk: Disk, folder: str, contents: Mapping[str, bytes], *, hold: bool) -> Steps[None]:
    """Return the steps of `Disk.replace` for several files of a folder.

    Each file has the old content or the new one, whatever happens, and the new files get their names in this order.
    `hold`: the files stay open until they are durable. Raises `DiskError`.
    """
    if not contents:
        return
    with contextlib.ExitStack() as opened:
        files = []
        try:
            for name, content in contents.items():
                file = _temporary(disk, f"{folder}/{name}{TEMPORARY_SUFFIX}", content)
                if hold:
                    opened.callback(file.close)
                    files.append(file)
                else:
                    file.close()
            yield Durable(files)
        except DiskError:
            for name in contents:
                with contextlib.suppress(DiskError):
                    disk.remove(f"{folder}/{name}{TEMPORARY_SUFFIX}")
            raise
    for name in contents:
        disk.rename(f"{folder}/{name}{TEMPORARY_SUFFIX}", f"{folder}/{name}")
    yield Durable(folders=(folder,))


def _temporary(disk: Disk, path: str, content: bytes) -> File:
    """Write a temporary file with this content; a dead process's leftover of the same name is removed first."""
    disk.remove(path)
    file = disk.open(path, exclusive=True)
    try:
        file.pwritev([content], 0)
    except DiskError:
        file.close()
        raise
    return file
