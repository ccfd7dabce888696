"""The output of `raftlog consume`: standard output or a file, with its own buffer.

Writing happens outside of the loop, on the descriptor itself: a pipe that is full because its reader is slow delays
neither the connections to the brokers nor Ctrl-C.
"""

from __future__ import annotations

import asyncio
import io
import sys
from typing import BinaryIO

from raftlog.cli.terminal.off_loop import off_loop
from raftlog.config import KIB
from raftlog.errors import DiskFailed, InvalidRequest

BUFFER_BYTES = 256 * KIB
STDOUT = "-"


class Closed(Exception):
    """The output has no reader any more."""


class Sink:
    """An output file, written in order. It must be closed; unflushed bytes are dropped then."""

    def __init__(self, path: str) -> None:
        """`-` is standard output; any other file is emptied first. Raises `InvalidRequest`."""
        self._name = "standard output" if path == STDOUT else path
        self._pieces: list[bytes] = []
        self._buffered = 0
        self._writing: asyncio.Task[None] | None = None
        """The write in progress. It continues if its waiter is interrupted; later writes wait for it."""
        self.is_file = path != STDOUT
        """Whether the output is a named file."""
        try:
            self._file = io.FileIO(path, "w") if self.is_file else standard_output()
        except OSError as error:
            raise InvalidRequest("invalid_request", f"cannot write to {path}: {error.strerror}") from None

    async def write(self, data: bytes) -> None:
        """Buffer bytes, and flush a full buffer. Raises `Closed` and `DiskFailed`, for earlier bytes too."""
        self._pieces.append(data)
        self._buffered += len(data)
        if self._buffered >= BUFFER_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Pass all buffered bytes to the operating system. Raises `Closed` and `DiskFailed`."""
        try:
            if self._writing is not None:
                await asyncio.shield(self._writing)
            if self._buffered:
                pieces, self._pieces, self._buffered = self._pieces, [], 0
                self._writing = asyncio.create_task(off_loop(lambda: self._write_all(pieces)))
                await asyncio.shield(self._writing)
            self._writing = None
        except BrokenPipeError:
            raise Closed from None
        except OSError as error:
            raise DiskFailed(f"cannot write to {self._name}: {error.strerror}") from None

    def close(self) -> None:
        if self.is_file:
            self._file.close()

    def _write_all(self, pieces: list[bytes]) -> None:
        left = memoryview(b"".join(pieces))
        while left:
            left = left[self._file.write(left) or 0 :]


def standard_output() -> BinaryIO | io.FileIO:
    stream = sys.stdout.buffer
    stream.flush()
    try:
        return io.FileIO(stream.fileno(), "w", closefd=False)
    except io.UnsupportedOperation:
        return stream  # in memory
