"""Messages out of DATA: each has a length prefix of its own, frame boundaries mean nothing.

A frame that is exactly one message is the common case and takes a shorter way (`receiving.py`). Everything else comes
here: prefixes cut in two, many messages in a frame, one message over many frames. A message of known length gets one
buffer of its own; the kernel may write the rest of it straight there (`room`, `filled`).

Memory follows what was received, not what was announced: a buffer begins with at most `FIRST_BYTES` and grows by
`GROW_BYTES`, so a peer that announces much and sends little costs little. All unfinished messages of a connection
share one `PartialBudget`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..config import KIB, MIB
from ..ports import FileRegion, Part
from .frames import PREFIX, PREFIX_BYTES, ErrorCode, Http2Error

FIRST_BYTES = 2 * MIB + 256 * KIB
"""A replication push (1 MiB) or what a consumer gets of a partition (2 MiB), with its head, is allocated at once."""
GROW_BYTES = 2 * MIB
_ZEROS = bytes(GROW_BYTES)
"""To grow by: made anew each time they cost more than what is received over them."""


class PartialOverflow(Exception):
    """The unfinished messages of the connection are too many: the stream that asked for more is reset."""


class PartialBudget:
    """Bytes held for unfinished messages of one connection.

    Invariant: 0 <= used <= limit.
    """

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def take(self, count: int) -> None:
        """Raises `PartialOverflow` when there is not so much left."""
        if self.used + count > self.limit:
            raise PartialOverflow
        self.used += count

    def give_back(self, count: int) -> None:
        self.used -= count
        assert self.used >= 0, self.used


class MessageAssembler:
    """The bytes of one stream → its messages.

    Invariant: `_filled <= len(_buffer) <= _length` while a message is unfinished.
    """

    __slots__ = ("_budget", "_buffer", "_filled", "_length", "_limit", "_prefix", "_room")

    def __init__(self, limit: int, budget: PartialBudget) -> None:
        self._limit = limit
        self._budget = budget
        self._prefix = b""
        self._length = -1
        """Of the message that is being received; -1 between messages."""
        self._buffer = bytearray()
        self._filled = 0
        self._room: memoryview | None = None

    @property
    def at_boundary(self) -> bool:
        """Nothing of a next message has been received."""
        return self._length < 0 and not self._prefix

    def check_length(self, length: int) -> None:
        """Raises `Http2Error` for a message longer than was announced as our limit."""
        if length > self._limit:
            raise Http2Error(
                ErrorCode.ENHANCE_YOUR_CALM, f"message of {length} bytes announced, the limit is {self._limit}"
            )

    def feed(self, data: memoryview) -> list[memoryview]:
        """Messages finished by these bytes, which are copied. Raises `Http2Error`, `PartialOverflow`."""
        messages: list[memoryview] = []
        position, end = 0, len(data)
        while position < end:
            if self._length < 0:
                position = self._take_prefix(data, position)
                if self._length < 0:
                    break
                if self._length <= end - position:  # whole in this piece: no buffer to keep
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
        """Bytes still missing of a message whose length is known, else 0."""
        return self._length - self._filled if self._length > 0 else 0

    def room(self, count: int) -> memoryview:
        """Where up to `count` more bytes of the message may go; then call `filled`. Raises `PartialOverflow`."""
        if self._filled == len(self._buffer):
            self._grow(self._filled + 1)
        self._room = memoryview(self._buffer)[self._filled : self._filled + count]
        return self._room

    def filled(self, count: int) -> memoryview | None:
        """So many bytes were written into `room`. The message, if that was all of it."""
        assert self._room is not None
        self._room.release()  # a bytearray that is looked at cannot grow
        self._room = None
        self._filled += count
        return self._finish() if self._filled == self._length else None

    def discard(self) -> None:
        """Forget an unfinished message."""
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
    """Parts whose `len` counts bytes, empty ones left out, and how many bytes there are together."""
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
            length = len(part)  # type: ignore[arg-type]  # not a region: nobody inherits from that class
            if not length:
                continue
        normal.append(part)
        total += length
    return normal, total


def release_regions(parts: Sequence[Part]) -> None:
    """Give up the file regions among these parts."""
    for part in parts:
        if isinstance(part, FileRegion):
            part.release()
