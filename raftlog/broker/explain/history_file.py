"""The change history on disk, so that it survives restarts: two small files that take turns.

Changes are appended to one file, at most once in `FLUSH_SECONDS`. When it is full the other one begins empty, so about
one to two files' worth of the newest changes is kept. Each change has a length and a CRC-32C; reading ends at the first
one that is damaged or cut short. The files are for people, so nothing is fsynced, and a disk that cannot take them
costs the history, never the node: a failed write is logged, and the next one begins the other file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import msgspec
from crc32c import crc32c

from raftlog.errors import DiskError
from raftlog.ports import Disk, Logger, Scheduler, Worker

from .history import Change, ChangeHistory

FOLDER = "history"
FILES = ("changes-0", "changes-1")
MAX_FILE_BYTES = 1024 * 1024
FLUSH_SECONDS = 1.0
MAX_WAITING = 20_000
"""The most changes that wait for the disk; further ones are not written."""
_HEAD = struct.Struct(">II")

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Change)


class HistoryFile:
    """The files of one node's history."""

    def __init__(
        self, history: ChangeHistory, disk: Disk, scheduler: Scheduler, worker: Worker, logger: Logger
    ) -> None:
        self._history = history
        self._disk = disk
        self._scheduler = scheduler
        self._worker = worker
        self._logger = logger
        self._waiting: list[Change] = []
        self._writing = self._armed = self._closed = False
        self._current = 0
        self._size = 0
        """The size of the current file; a file whose last write failed counts as full."""

    def load(self) -> None:
        """Read what an earlier process remembered. Blocks; called once, before anything is noted."""
        found: list[list[Change]] = []
        for name in FILES:
            changes, size = _read(self._disk, f"{FOLDER}/{name}")
            found.append(changes)
            if name == FILES[self._current] or _newest(changes) > _newest(found[self._current]):
                self._current, self._size = FILES.index(name), size
        self._history.restore(change for changes in found for change in changes)
        self._history.subscribe(self._on_change)

    def close(self) -> None:
        """Write what waits, and nothing after that. Blocks."""
        self._closed = True
        if self._waiting and not self._writing:
            self._write(self._take())

    def _on_change(self, change: Change) -> None:
        if self._closed or len(self._waiting) >= MAX_WAITING:
            return
        self._waiting.append(change)
        self._arm()

    def _arm(self) -> None:
        if self._waiting and not (self._armed or self._writing or self._closed):
            self._armed = True
            self._scheduler.call_later(FLUSH_SECONDS, self._flush)

    def _flush(self) -> None:
        self._armed = False
        if self._writing or self._closed:
            return
        self._writing = True
        taken = self._take()
        self._worker.submit(lambda: self._write(taken), self._written)

    def _written(self, _: None, error: BaseException | None) -> None:
        self._writing = False
        if error is not None:
            self._logger.warning("history_not_written", reason=str(error))
        self._arm()

    def _take(self) -> list[Change]:
        taken, self._waiting = self._waiting, []
        return taken

    def _write(self, changes: Iterable[Change]) -> None:
        """Append the changes; one call at a time."""
        packed = b"".join(_framed(_encoder.encode(change)) for change in changes)[:MAX_FILE_BYTES]
        try:
            self._disk.make_directory(FOLDER)
            if self._size + len(packed) > MAX_FILE_BYTES:
                self._current, self._size = 1 - self._current, 0
            file = self._disk.open(f"{FOLDER}/{FILES[self._current]}", create=True)
            try:
                if self._size == 0:
                    file.truncate(0)
                file.pwritev([packed], self._size)
            finally:
                file.close()
        except DiskError:
            self._size = MAX_FILE_BYTES
            raise
        self._size += len(packed)


def _framed(packed: bytes) -> bytes:
    return _HEAD.pack(len(packed), crc32c(packed)) + packed


def _newest(changes: list[Change]) -> int:
    return max((change.time_ms for change in changes), default=-1)


def _read(disk: Disk, path: str) -> tuple[list[Change], int]:
    """Return the changes in a file, and the number of bytes that they take."""
    try:
        content = disk.read(path) if disk.exists(path) else b""
    except (DiskError, FileNotFoundError):
        return [], MAX_FILE_BYTES
    changes, at = [], 0
    while at + _HEAD.size <= len(content):
        length, crc = _HEAD.unpack_from(content, at)
        packed = content[at + _HEAD.size : at + _HEAD.size + length]
        if len(packed) < length or crc32c(packed) != crc:
            break
        try:
            changes.append(_decoder.decode(packed))
        except (msgspec.MsgspecError, ValueError):
            break
        at += _HEAD.size + length
    return changes, at
