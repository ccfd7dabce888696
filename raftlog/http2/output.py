"""What one HTTP/2 connection has to send, and when it does.

What is sent in one event of the loop, be it what this connection received, another one or a worker's result, goes out
together at its end (`raftlog/loop_events.py`): one system call. What is sent outside of events goes out in the loop's
next turn.

The writer holds about `HIGH_WATER_BYTES` of frames, the rest waits in the core's per-stream queues: so a PING's answer
and another stream's message overtake bulk, and a reset stream's queue need not be sent.

What is *not* here: what the frames are (`sending.py`), system calls (`raftlog/zero_copy.py`), closing (`shell.py`).
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable

from ..loop_events import LoopEvents, events_of
from ..zero_copy import SocketWriter
from .connection import ConnectionCore
from .limits import Http2Limits
from .tls import TransportWriter

HIGH_WATER_BYTES = 1024 * 1024


class Phase(enum.Enum):
    """How far closing has come."""

    OPEN = enum.auto()
    FLUSHING = enum.auto()
    """The last output is on its way."""
    LINGERING = enum.auto()
    """All is said; the peer's end is awaited."""
    CLOSED = enum.auto()


class ConnectionOutput(asyncio.BufferedProtocol):
    """The sending half of `ConnectionShell`, which inherits it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, core: ConnectionCore, limits: Http2Limits) -> None:
        self._loop = loop
        self._core = core
        self.limits = limits
        self.on_drained: Callable[[], None] | None = None
        """Called in a later turn when most of what had to wait was taken by the kernel."""
        self._phase = Phase.OPEN
        self._writer: SocketWriter | TransportWriter | None = None
        self._events = events_of(loop)
        self._dispatching = False
        """Events of the core are being handled, by `_dispatch`."""
        self._flush_due = False
        """Output waits for the end of this event."""
        self._wake_due = False
        self._behind = False
        """Something had to wait, and `on_drained` is owed."""

    # --- For the shell -----------------------------------------------------------------------------------------------

    def abort(self, reason: str) -> None:
        """Drop the connection without a word."""
        raise NotImplementedError

    def _on_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Handle what waits."""
        raise NotImplementedError

    def _said_all(self) -> None:
        """The last output is sent."""
        raise NotImplementedError

    # --- Inside ------------------------------------------------------------------------------------------------------

    @property
    def queued_bytes(self) -> int:
        """Everything that waits to be sent, of all streams."""
        return self._core.outbox.queued_bytes + (self._writer.backlog if self._writer else 0)

    def _flush(self) -> None:
        """After a call of the user's: send at the end of this event. Events of ours wait for the next turn."""
        if self._core.events and not self._dispatching:
            self._wake()
        if self._core.outbox.room <= 0:
            self._write()  # what waits for the end of an event is bounded, too
        elif not self._flush_due:
            self._flush_due = True
            self._events.at_end(self._flush_now)

    def _flush_later(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self._events.at_end(self._flush_now)

    def _flush_now(self, events: LoopEvents) -> None:
        if events is self._events:  # else the connection has left that loop
            self._flush_due = False
            self._write()

    def _wake(self) -> None:
        if not self._wake_due:
            self._wake_due = True
            self._loop.call_soon(self._on_turn, self._loop)

    def _write(self) -> None:
        writer, core = self._writer, self._core
        if writer is None:
            return
        outbox = core.outbox
        if outbox.output and not (outbox.queued_bytes or writer.backlog):
            if parts := core.take_output(HIGH_WATER_BYTES):
                writer.send(parts)
            if writer.backlog or self._behind or core.closing:
                self._refill()
        elif outbox.output or outbox.queued_bytes:
            self._refill()
            writer.flush()
        if writer.backlog or outbox.queued_bytes:
            if writer.backlog + outbox.queued_bytes > self.limits.max_queued_bytes:
                self.abort(f"the peer reads too slowly: {self.queued_bytes} bytes wait for it")
                return
            if (pieces := writer.pieces + outbox.queued_messages) > self.limits.max_queued_pieces:
                self.abort(f"the peer reads too slowly: {pieces} frames and messages wait for it")
                return
        if self._phase is Phase.FLUSHING and not writer.backlog:
            self._said_all()

    def _refill(self) -> None:
        """Frames from the core into the writer, as far as the writer wants them. The writer calls this, too."""
        writer, outbox = self._writer, self._core.outbox
        assert writer is not None
        room = HIGH_WATER_BYTES - writer.backlog
        if outbox.output or (outbox.queued_bytes and room > 0):
            writer.extend(self._core.take_output(room))
            room = HIGH_WATER_BYTES - writer.backlog
        outbox.room = room
        if room <= 0 or outbox.queued_bytes:
            self._behind = True
        elif self._behind and room >= HIGH_WATER_BYTES // 2:
            self._behind = False
            self._loop.call_soon(self._tell_drained)
        if room == HIGH_WATER_BYTES and (self._phase is Phase.FLUSHING or self._core.closing):
            self._wake()

    def _tell_drained(self) -> None:
        if self.on_drained is not None and not self._behind:
            self.on_drained()
