"""Messages out of DATA frames: each has its own length prefix, and frame boundaries are irrelevant.

A frame that is exactly one message is the common case and takes a shortcut (`receiving.py`). All others are handled
here: split prefixes, several messages in a frame, one message over many frames. A message of known length gets its own
buffer; the kernel may write the rest of it straight into it (`room`, `filled`).

Memory follows what was received, not what was announced: a buffer begins with at most `FIRST_BYTES` and grows by
`GROW_BYTES`, so a peer that announces much and sends little costs little. All unfinished messages of a connection share
one `PartialBudget`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..config import KIB, MIB
from ..ports import FileRegion, Part
from .frames import PREFIX, PREFIX_BYTES, ErrorCode, Http2Error

FIRST_BYTES = 2 * MIB + 256 * KIB
"""Initial size of a buffer, in bytes.

A replication push (1 MiB) or a consumer's part of a partition (2 MiB), with its header, is allocated at once.
"""
GROW_BYTES = 2 * MIB
_ZEROS = bytes(GROW_BYTES)
"""Zeros to grow buffers with: allocating them each time costs more than receiving over them."""


class PartialOverflow(Exception):
    """The connection has too many unfinished messages: the stream that needs more is reset."""


class PartialBudget:
    """Bytes held for the unfinished messages of one connection.

    Invariant: 0 <= used <= limit.
    """

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def take(self, count: int) -> None:
        """Take `count` bytes. Raises `PartialOverflow` if fewer are left."""
        if self.used + count > self.limit:
            raise PartialOverflow
        self.used += count

    def give_back(self, count: int) -> None:
        self.used -= count
        assert self.used >= 0, self.used


class MessageAssembler:
    """Turns the bytes of one stream into messages.

    Invariant: `_filled <= len(_buffer) <= _length` while a message is unfinished.
    """

    __slots__ = ("_budget", "_buffer", "_filled", "_length", "_limit", "_prefix", "_room")

    def __init__(self, limit: int, budget: PartialBudget) -> None:
        self._limit = limit
        self._budget = budget
        self._prefix = b""
        self._length = -1
        """Length of the message that is being received; -1 between messages."""
        self._buffer = bytearray()
        self._filled = 0
        self._room: memoryview | None = None

    @property
    def at_boundary(self) -> bool:
        """Whether nothing of a next message has been received."""
        return self._length < 0 and not self._prefix

    def check_length(self, length: int) -> None:
        """Raise `Http2Error` for a message longer than the limit that this side announced."""
        if length > self._limit:
            raise Http2Error(
                ErrorCode.ENHANCE_YOUR_CALM, f"message of {length} bytes announced, the limit is {self._limit}"
            )

    def feed(self, data: memoryview) -> list[memoryview]:
        """Copy these bytes, and return the messages that they complete. Raises `Http2Error`, `PartialOverflow`."""
        messages: list[memoryview] = []
        position, end = 0, len(data)
        while position < end:
            if self._length < 0:
                position = self._take_prefix(data, position)
                if self._length < 0:
                    break
                if self._length <= end - position:  # complete within this piece: no buffer needed
                    messages.append(memoryview(bytes(data[position : position + self._length])))
                    position += self._length
                    self._length = -1
                    continue
                self._begin()
            count = min(end - position, self._length - self._filled)
            if self._filled + count > len(self._buffer):
                self._grow(self._filled + count)
            self._buffer[self._filled : self._filled + count] = data[position : position + count]
            position += count
            self._filled += count
            if self._filled == self._length:
                messages.append(self._finish())
        return messages

    def wanted(self) -> int:
        """Return the number of bytes missing of a message whose length is known, else 0."""
        return self._length - self._filled if self._length > 0 else 0

    def room(self, count: int) -> memoryview:
        """Return a buffer for up to `count` more bytes of the message; then call `filled`.

        Raises `PartialOverflow`.
        """
        if self._filled == len(self._buffer):
            self._grow(self._filled + 1)
        self._room = memoryview(self._buffer)[self._filled : self._filled + count]
        return self._room

    def filled(self, count: int) -> memoryview | None:
        """Report `count` bytes received into the buffer; return the message once complete."""
        assert self._room is not None
        self._room.release()  # a bytearray with an exported view cannot grow
        self._room = None
        self._filled += count
        return self._finish() if self._filled == self._length else None

    def discard(self) -> None:
        """Drop an unfinished message."""
        if self._buffer:
            self._budget.give_back(len(self._buffer))
        self._prefix = b""
        self._length = -1
        self._filled = 0
        self._room = None
        self._buffer = bytearray()

    def _take_prefix(self, data: memoryview, position: int) -> int:
        missing = PREFIX_BYTES - len(self._prefix)
        self._prefix += bytes(data[position : position + missing])
        if len(self._prefix) == PREFIX_BYTES:
            (length,) = PREFIX.unpack(self._prefix)
            self.check_length(length)
            self._prefix, self._length = b"", length
        return position + missing

    def _begin(self) -> None:
        size = min(self._length, FIRST_BYTES)
        self._budget.take(size)
        self._buffer = bytearray(size)
        self._filled = 0

    def _grow(self, needed: int) -> None:
        while (held := len(self._buffer)) < needed:
            more = min(self._length - held, GROW_BYTES)
            self._budget.take(more)
            self._buffer.extend(memoryview(_ZEROS)[:more])

    def _finish(self) -> memoryview:
        assert self._filled == len(self._buffer) == self._length
        message = memoryview(self._buffer)
        self._budget.give_back(self._length)
        self._buffer = bytearray()
        self._length = -1
        self._filled = 0
        return message


def normalize(parts: Sequence[Part]) -> tuple[list[Part], int]:
    """Return the parts with `len` in bytes and without empty ones, and their total size."""
    normal: list[Part] = []
    total = 0
    for part in parts:
        if type(part) is FileRegion:
            length = part.length
            if not length:
                part.release()
                continue
        else:
            if type(part) is memoryview and (part.itemsize != 1 or part.ndim != 1):
                part = part.cast("B")
            length = len(part)  # type: ignore[arg-type] # not a region: that class has no subclasses
            if not length:
                continue
        normal.append(part)
        total += length
    return normal, total


def release_regions(parts: Sequence[Part]) -> None:
    """Release the file regions among these parts."""
    for part in parts:
        if isinstance(part, FileRegion):
            part.release()
