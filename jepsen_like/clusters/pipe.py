"""Bytes in transit over a directed link: held, delayed, or lost with their connection.

A `Pipe` carries one direction of one connection. Data that it has read waits until it is due and the link lets it
through; then it is written. The waiting bytes are bounded: a full pipe stops reading, and TCP slows the sender down.

`Conditions` is the current state of a link; all pipes over the link share it, and see its changes at once:

* cut: nothing arrives; data in transit arrives after the heal, as if TCP retransmitted it;
* delay and jitter: each piece waits; pieces of one connection stay in order (a stream does not reorder), those of
  several connections overtake one another;
* `lingers`: when the sender's connection breaks, the data already sent still arrives, late, long after the sender has
  resent it over another connection, as through a router with deep buffers. So a receiver sees old bytes after newer
  ones, and some of them twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass, field

from raftlog.ports import Random

READ_BYTES = 64 * 1024
WAITING_BYTES_MAX = 1024 * 1024
LINGER_SECONDS_MAX = 60.0
"""Upper bound: data of a broken connection arrives within this time or never."""


@dataclass(slots=True)
class Conditions:
    """The state of a directed link. Belongs to one event loop. Change it by its methods only: pipes wait for that."""

    random: Random
    delay: float = 0.0
    """Seconds."""
    jitter: float = 0.0
    lingers: float = 0.0
    """Seconds until the last bytes of a broken connection arrive; 0: they are lost."""
    held_bytes: int = 0
    """Bytes that were held by a cut, since `begin_count`."""
    delayed_pieces: int = 0
    lingered_bytes: int = 0
    resets: int = 0
    _open: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._open.set()

    @property
    def is_cut(self) -> bool:
        return not self._open.is_set()

    def cut(self) -> None:
        self._open.clear()

    def mend(self) -> None:
        """Reset the link to its normal state."""
        self.delay = self.jitter = self.lingers = 0.0
        self._open.set()

    def begin_count(self) -> None:
        self.held_bytes = self.delayed_pieces = self.lingered_bytes = self.resets = 0

    async def lets_through(self) -> None:
        await self._open.wait()

    def draw_delay(self) -> float:
        if not self.delay and not self.jitter:
            return 0.0
        self.delayed_pieces += 1
        return max(self.delay + self.random.uniform(-self.jitter, self.jitter), 0.0)


class Pipe:
    """One direction of a connection: from `reader` to `writer`. Call `run` in one task."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, conditions: Conditions) -> None:
        self._reader = reader
        self._writer = writer
        self._conditions = conditions
        self._waiting: deque[tuple[float, bytes]] = deque()
        """(time when it is due, data)."""
        self._waiting_bytes = 0
        self._changed = asyncio.Event()
        """Set when data was read or written, or the reader has reached its end."""
        self._ended = False
        self._flows = asyncio.Event()
        self._flows.set()
        self.stalled_bytes = 0
        """Total bytes that arrived while the connection was stalled."""

    @property
    def waiting_bytes(self) -> int:
        """Bytes that were read and not written yet."""
        return self._waiting_bytes

    def stall(self) -> None:
        """Stop all traffic on this connection until `flow`."""
        self._flows.clear()

    def flow(self) -> None:
        self._flows.set()

    async def run(self) -> None:
        """Carry data until the sender has ended and all has arrived. Raises `OSError` if the receiver is gone."""
        reading, writing = asyncio.create_task(self._read()), asyncio.create_task(self._write())
        try:
            await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                reading.result()
                self._ended = True
                self._changed.set()
            await writing
        finally:
            for task in (reading, writing):
                task.cancel()
            await asyncio.gather(reading, writing, return_exceptions=True)

    async def linger(self, seconds: float) -> None:
        """Deliver the remaining data after `seconds`; the sender is gone already."""
        try:
            async with asyncio.timeout(LINGER_SECONDS_MAX):
                await asyncio.sleep(seconds)
                await self._conditions.lets_through()
                while self._waiting:
                    _, data = self._waiting.popleft()
                    self._conditions.lingered_bytes += len(data)
                    self._writer.write(data)
                    await self._writer.drain()
        except (OSError, TimeoutError):
            return  # the receiver is gone, too: the late data has no destination

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        due = 0.0
        while True:
            try:
                data = await self._reader.read(READ_BYTES)
            except OSError:
                return
            if not data:
                return
            if self._conditions.is_cut:
                self._conditions.held_bytes += len(data)
            if not self._flows.is_set():
                self.stalled_bytes += len(data)
            due = max(loop.time() + self._conditions.draw_delay(), due)
            self._waiting.append((due, data))
            self._waiting_bytes += len(data)
            self._changed.set()
            while self._waiting_bytes > WAITING_BYTES_MAX:
                self._changed.clear()
                await self._changed.wait()

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while not self._waiting:
                if self._ended:
                    with contextlib.suppress(OSError):
                        self._writer.write_eof()
                    return
                self._changed.clear()
                await self._changed.wait()
            await self._flows.wait()
            await self._conditions.lets_through()
            late = self._waiting[0][0] - loop.time()
            if late > 0:
                await asyncio.sleep(late)
                continue  # the link may have been cut meanwhile
            _, data = self._waiting.popleft()
            self._waiting_bytes -= len(data)
            self._changed.set()
            self._writer.write(data)
            await self._writer.drain()
