"""Messages out of DATA frames: each has its own length prefix, and frame boundaries are irrelevant.

A frame that is exactly one message is the common case and takes a shortcut (`receiving.py`). All others are handled
here: split prefixes, several messages in a frame, one message over many frames. A message of known length gets its own
buffer; the kernel may write the rest of it straight into it (`room`, `filled`).

Memory follows what was received, not what was announced: a buffer begins with at most `FIRST_BYTES` and grows by
`GROW_BYTES`, so a peer that announces much and sends little costs little. All unfinished messages of a connection share
one `PartialBudget`, and all connections of a listener on one loop share a `PartialPool`. If the pool is more than half
full, buffers begin small and at most double. If it is full, the message that has been unfinished for the longest time
gives way: an honest peer's is complete soon, one that was begun to hold memory never is.

Content that comes before its request is answered has a part of its own (`PartialPool.early`), in which the oldest gives
way likewise: its sender may be anybody, and must not cost others their messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..config import KIB, MIB
from ..ports import FileRegion, Part
from .frames import PREFIX, PREFIX_BYTES, ErrorCode, Http2Error

FIRST_BYTES = 2 * MIB + 256 * KIB
"""Initial size of a buffer, in bytes.

A replication push (1 MiB) or a consumer's part of a partition (2 MiB), with its header, is allocated at once.
"""
GROW_BYTES = 2 * MIB
SMALL_BYTES = 64 * KIB
"""Initial size of a buffer while the pool is more than half full, in bytes."""
_ZEROS = bytes(GROW_BYTES)
"""Zeros to grow buffers with: allocating them each time costs more than receiving over them."""

EARLY_PART = 4
"""Content before an answer may take one part in this many of a pool's limit, beside it."""

UNBOUNDED = 2**62
"""Limit of the pool of a connection that shares none: its own limit suffices."""


class PartialOverflow(Exception):
    """The connection has too many unfinished messages: the stream that needs more is reset."""


class PartialPool:
    """Bytes held for the unfinished messages of many connections, all on one loop.

    Invariant: 0 <= used <= limit.
    """

    __slots__ = ("_early", "_unfinished", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._unfinished: dict[MessageAssembler, None] = {}
        """Messages with a buffer, in the order in which they began."""
        self._early: PartialPool | None = None

    @property
    def early(self) -> PartialPool:
        """The bytes for content that comes before its request is answered."""
        if self._early is None:
            self._early = PartialPool(self.limit // EARLY_PART)
        return self._early

    @property
    def is_short(self) -> bool:
        """Whether more than half of the bytes are held."""
        return 2 * self.used > self.limit

    def begin(self, message: MessageAssembler) -> None:
        """Remember a message that holds bytes from now on."""
        self._unfinished[message] = None

    def end(self, message: MessageAssembler) -> None:
        """Forget a message that holds no bytes any more."""
        self._unfinished.pop(message, None)

    def take(self, count: int, message: MessageAssembler | None) -> None:
        """Take `count` bytes, if necessary from older messages. `message` asks for them, and keeps what it has.

        Raises `PartialOverflow` if there are no older messages.
        """
        while self.used + count > self.limit:
            oldest = next(iter(self._unfinished), None)
            if oldest is None or oldest is message:
                raise PartialOverflow
            self.end(oldest)
            oldest.give_way()
        self.used += count

    def give_back(self, count: int) -> None:
        self.used -= count
        assert self.used >= 0, self.used


class PartialBudget:
    """Bytes held for the unfinished messages of one connection, and for content before an answer.

    Invariant: 0 <= used <= limit; `pool.used` includes `used` but for the bytes in `_early`, which are in
    `pool.early.used`.
    """

    __slots__ = ("_early", "limit", "now", "pool", "used")

    def __init__(self, limit: int, pool: PartialPool | None = None) -> None:
        self.limit = limit
        self.pool = PartialPool(UNBOUNDED) if pool is None else pool
        self.used = 0
        self.now = 0.0
        """The time of the last input, in seconds."""
        self._early: dict[MessageAssembler, int] = {}
        """Streams with content before an answer, and its bytes."""

    def take(self, count: int, message: MessageAssembler | None = None) -> None:
        """Take `count` bytes, for a message if one is given. Raises `PartialOverflow` if fewer are left."""
        if self.used + count > self.limit:
            raise PartialOverflow
        self.pool.take(count, message)
        self.used += count

    def give_back(self, count: int) -> None:
        self.used -= count
        assert self.used >= 0, self.used
        self.pool.give_back(count)

    def take_early(self, count: int, stream: MessageAssembler) -> None:
        """Take `count` bytes for content of a stream that is not answered yet. Raises `PartialOverflow`."""
        if self.used + count > self.limit:
            raise PartialOverflow
        early = self.pool.early
        early.take(count, stream)
        early.begin(stream)
        self._early[stream] = self._early.get(stream, 0) + count
        self.used += count

    def give_back_early(self, stream: MessageAssembler) -> None:
        """Give back what `take_early` took for a stream, if it took anything."""
        count = self._early.pop(stream, 0)
        if count:
            self.used -= count
            self.pool.early.give_back(count)
            self.pool.early.end(stream)

    def change_pool(self, pool: PartialPool) -> None:
        """Charge another pool from now on. No message of the connection is unfinished."""
        messages = self.used - sum(self._early.values())
        self.pool.give_back(messages)
        pool.used += messages
        for stream, count in self._early.items():
            self.pool.early.give_back(count)
            self.pool.early.end(stream)
            pool.early.used += count
            pool.early.begin(stream)
        self.pool = pool


class MessageAssembler:
    """Turns the bytes of one stream into messages.

    Invariant: `_filled <= len(_buffer) <= _length` while a message is unfinished.
    """

    __slots__ = ("_budget", "_buffer", "_filled", "_length", "_limit", "_prefix", "_room", "began", "give_way")

    def __init__(self, limit: int, budget: PartialBudget, give_way: Callable[[], None] = lambda: None) -> None:
        """`give_way` ends the stream because another one needs the bytes of its unfinished message, or of its content
        before an answer: it gives them back."""
        self._limit = limit
        self._budget = budget
        self.give_way = give_way
        self.began = 0.0
        """The time at which the unfinished message began."""
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

    @property
    def holds(self) -> bool:
        """Whether it holds bytes of an unfinished message."""
        return bool(self._buffer)

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
            self._budget.pool.end(self)
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
        budget = self._budget
        size = min(self._length, SMALL_BYTES if budget.pool.is_short else FIRST_BYTES)
        budget.take(size, self)
        budget.pool.begin(self)
        self.began = budget.now
        self._buffer = bytearray(size)
        self._filled = 0

    def _grow(self, needed: int) -> None:
        while (held := len(self._buffer)) < needed:
            more = min(self._length - held, GROW_BYTES)
            if self._budget.pool.is_short:
                more = min(more, held)
            self._budget.take(more, self)
            self._buffer.extend(memoryview(_ZEROS)[:more])

    def _finish(self) -> memoryview:
        assert self._filled == len(self._buffer) == self._length
        message = memoryview(self._buffer)
        self._budget.give_back(self._length)
        self._budget.pool.end(self)
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
