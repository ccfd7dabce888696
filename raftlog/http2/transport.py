"""The asyncio half of one HTTP/2 connection: reading, writing, timers, closing, and moving to another loop.

Reading is asyncio's (`BufferedProtocol`, into buffers that the core provides); writing is `SocketWriter`'s on a plain
connection and `TransportWriter`'s under TLS.

The input of one read is handled in turns (`turns.py`), and nothing more is read until that is done: thousands of tiny
frames do not block the loop, and many connections that send them do not keep others waiting.

Everything sent during one event of the loop, whether that is input of this connection, of another one or a worker's
result, goes out together at its end (`raftlog/system/loop_events.py`): one system call. Output outside of events goes
out in the next iteration. The writer holds about `HIGH_WATER_BYTES` of frames, the rest waits in the core's per-stream
queues: so the answer to a PING and another stream's messages overtake bulk, and a reset stream's queue need not be
sent.

Closing: the last output (a GOAWAY) is sent, then the sending direction is shut down, then input is read and ignored
until the peer closes or `linger_s` has passed; closing at once would make the kernel send a RST that overtakes the
GOAWAY.

Moving: the old loop stops and forgets the connection completely before the new loop gets it, so only one thread ever
uses it.
"""

from __future__ import annotations

import asyncio
import enum
import socket
from collections.abc import Callable, Collection
from typing import Any

from raftlog.ports import Part
from raftlog.system.loop_events import LoopEvents, events_of
from raftlog.system.zero_copy import SocketWriter, duplicate_socket

from ..ports import release_regions
from .core import ConnectionCore
from .events import Event
from .frames import ErrorCode
from .limits import Http2Limits
from .tls import TransportWriter, speaks_h2
from .turns import WHOLE_TURN, Turns
from .unread import UnreadPool

HIGH_WATER_BYTES = 1024 * 1024
SHORTEST_TICK_S = 0.01


class Phase(enum.Enum):
    """The phase of closing."""

    OPEN = enum.auto()
    FLUSHING = enum.auto()
    """The last output is being sent."""
    LINGERING = enum.auto()
    """Everything is sent; the peer's end is awaited."""
    CLOSED = enum.auto()


class ConnectionShell(asyncio.BufferedProtocol):
    """Moves bytes between a transport and a `ConnectionCore`, and passes the core's events to `on_event`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        core: ConnectionCore,
        limits: Http2Limits,
        *,
        on_connected: Callable[[], None],
        on_event: Callable[[Event], None],
        on_drained: Callable[[], None],
        on_read: Callable[[], None],
        on_peer_end: Callable[[], None],
        on_lost: Callable[[str], None],
    ) -> None:
        """Configure the callbacks.

        `on_connected`: there is a transport, at first, and again on another loop. `on_drained` is called in a later
        iteration when the kernel has taken most of what was queued, `on_read` when the peer has taken enough
        that requests need not wait any more (`is_unread`), `on_peer_end` when the peer has ended its side, `on_lost`
        once, with the reason, when the connection is over.
        """
        self.loop = loop
        """The loop to whose thread all calls belong."""
        self._core = core
        core.on_evicted = self.flush
        self._limits = limits
        self._on_connected = on_connected
        self._on_event = on_event
        self._on_drained = on_drained
        self._on_read = on_read
        self._on_peer_end = on_peer_end
        self._on_lost = on_lost
        self.unread_pool: UnreadPool | None = None
        """The budget of the bytes that wait for the peers of a listener; None: there is none."""
        self.turns = Turns()
        """The turns of the connections on the same loop, shared by a listener's."""
        self._turn = WHOLE_TURN
        self.is_unread = False
        """Whether more waits for the peer than `max_unread_bytes`, so that its requests wait, too."""
        self.held_bytes = 0
        """Bytes of the requests that wait, part of what the connection takes of the budget."""
        self.peer_address = ""
        self.peer_said = ""
        """Text of the peer's GOAWAY."""
        self._aborted = False
        self._reason = ""
        self._phase = Phase.OPEN
        self._transport: asyncio.Transport | None = None
        self._writer: SocketWriter | TransportWriter | None = None
        self._events = events_of(loop)
        self._dispatching = False
        """Whether `_dispatch` is handling events of the core."""
        self._flush_due = False
        """Whether output waits for the end of the current event."""
        self._wake_due = False
        self._noted = False
        """Whether the pool knows of bytes that wait for this peer."""
        self._behind = False
        """Whether something had to wait, so that `on_drained` must be called."""
        self._timer: asyncio.TimerHandle | None = None
        self._reading = True
        """Whether the transport is reading, as set last."""
        self._reading_wanted = True
        """Whether the user wants to read (`pause_reading`)."""
        self._catching_up = False
        """Whether received input waits to be handled; nothing is read meanwhile."""
        self._progress: tuple[int, int] | None = None
        self._progress_at = loop.time()
        self._move_to: asyncio.AbstractEventLoop | None = None
        self._moved_parts: list[Part] = []
        self._attaching: asyncio.Task[None] | None = None

    # --- For users ---------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether no stream can be opened and nothing will be received."""
        return self._phase is Phase.CLOSED or self._core.failed

    @property
    def queued_bytes(self) -> int:
        """Bytes waiting to be sent, on all streams."""
        return self._core.outbox.queued_bytes + (self._writer.backlog if self._writer else 0)

    @property
    def is_sent(self) -> bool:
        """Whether the socket has taken everything that there is to send."""
        outbox, transport = self._core.outbox, self._transport
        waits = outbox.output or outbox.queued_bytes or (self._writer is not None and self._writer.backlog)
        return not waits and not (transport is not None and transport.get_write_buffer_size())

    @property
    def attached(self) -> bool:
        """Whether there is a transport, or was one whose end is not reported yet."""
        return self._transport is not None

    def get_extra_info(self, name: str) -> Any:
        """Return the transport's `peername`, `ssl_object` or `peercert`."""
        return self._transport.get_extra_info(name) if self._transport else None

    def pause_reading(self) -> None:
        """Stop reading from this peer until `resume_reading`, to hold back a peer that sends too much.

        Keep it short: the peer's PINGs go unanswered meanwhile.
        """
        self._reading_wanted = False
        self._set_reading()

    def resume_reading(self) -> None:
        """Continue reading after `pause_reading`."""
        self._reading_wanted = True
        self._set_reading()

    def abort(self, reason: str) -> None:
        """Drop the connection without a GOAWAY."""
        self._aborted = True
        self._reason = self._reason or reason
        self._abandon()
        if self._transport is not None:
            self._transport.abort()

    def flush(self) -> None:
        """Send at the end of this event, after a call of the user's. Events wait for the next iteration."""
        if self._core.events and not self._dispatching:
            self._wake()
        outbox = self._core.outbox
        unread = outbox.queued_bytes >= self._limits.max_unread_bytes and self.unread_pool is not None
        if outbox.room <= 0 or (unread and not self.is_unread):
            self._write()  # the output waiting for the end of an event is bounded, too
        else:
            self._flush_later()

    def say_plain(self, answer: bytes) -> None:
        """Send bytes that are not HTTP/2, to a peer that speaks another protocol."""
        if self._writer is not None:
            self._writer.extend([answer])
            self._writer.flush()

    # --- For asyncio -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._reading = True
        if self._aborted:
            transport.abort()
            return
        self.peer_address = peer_address(transport)
        if transport.get_extra_info("sslcontext") is not None:
            self._writer = TransportWriter(transport, refill=self._refill, failed=self.abort)
        else:
            try:
                sock = duplicate_socket(transport)
            except OSError as error:  # no file descriptor is left
                self.abort(f"the connection cannot be served: {error}")
                return
            self._writer = SocketWriter(self.loop, sock, refill=self._refill, failed=self.abort)
        if not speaks_h2(transport):
            self.abort("the peer did not agree to HTTP/2 (ALPN)")
            return
        self._writer.extend(self._moved_parts)
        self._moved_parts = []
        self._writer.flush()
        self._on_connected()
        self._progress_at = self.loop.time()
        self._set_timer(self._progress_at)
        self._dispatch()
        self._handled()
        self._write()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._core.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        events = self._events
        events.begin()
        try:
            turn = self._turn = self.turns.turn_of(self)
            self._core.received(nbytes, self.loop.time(), turn.work)
            self._dispatch()
            self._handled()
        finally:
            events.end()

    def eof_received(self) -> bool:
        self._on_peer_end()
        return False

    def pause_writing(self) -> None:
        if isinstance(self._writer, TransportWriter):
            self._writer.pause()

    def resume_writing(self) -> None:
        if isinstance(self._writer, TransportWriter):
            self._writer.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._phase is Phase.CLOSED:
            return
        self._phase = Phase.CLOSED
        told = f"connection lost: {exc}" if exc else f"the peer closed the connection: {self.peer_said}".rstrip(": ")
        self._reason = self._reason or told
        if self._timer is not None:
            self._timer.cancel()
        self._abandon()
        self.turns.note(self, is_behind=False)
        try:
            self._dispatch()
        finally:
            self._on_lost(self._reason)

    # --- Iterations of the loop ---------------------------------------------------------------------------------------

    def _on_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop is not self.loop:
            return  # the connection has left this loop
        self._wake_due = False
        events = self._events
        events.begin()
        try:
            turn = self._turn = self.turns.turn_of(self)
            if self._core.behind and not self._core.events:
                self._core.received(0, loop.time(), turn.work)
            try:
                self._dispatch()
            finally:
                self._handled()
        finally:
            events.end()

    def _dispatch(self) -> None:
        events = self._core.events
        clock = self.loop.time
        on_event = self._on_event
        if self._dispatching or (self._transport is None and self._phase is not Phase.CLOSED):
            return  # re-entrant call, or the connection is between two loops
        if not events:
            self.close_if_finished()
        self._dispatching = True
        turn_ends = 0.0
        try:
            while events and self._move_to is None:
                on_event(events.popleft())
                if events:
                    now = clock()
                    turn_ends = turn_ends or now + self._turn.seconds
                    if now > turn_ends and self._phase is not Phase.CLOSED:
                        return  # `_handled` sees that there is more
        except BaseException as error:
            self.abort(f"a handler failed: {error!r}")
            raise
        finally:
            self._dispatching = False
            if events and self._phase is Phase.CLOSED:
                self._wake()  # a handler raised; the others get their events nevertheless

    def _handled(self) -> None:
        """After events were handled: send the answers, and continue reading if none are left."""
        if self._move_to is not None:
            self._leave(self._move_to)
            return
        outbox = self._core.outbox
        if outbox.output or outbox.queued_bytes or self._phase is Phase.FLUSHING:
            self._flush_later()
        self._catching_up = self._phase is not Phase.CLOSED and bool(self._core.events or self._core.behind)
        self.turns.note(self, is_behind=self._catching_up)
        if self._catching_up:
            self._wake()
        self._set_reading()

    def _set_reading(self) -> None:
        transport = self._transport
        # A full socket waits for the peer to read. A shut window waits for a frame of the peer's, which must be read.
        full = self.is_unread and self._writer is not None and self._writer.backlog > 0
        wanted = self._reading_wanted and not self._catching_up and not (full and self._phase is Phase.OPEN)
        if wanted is self._reading or transport is None or transport.is_closing():
            return
        self._reading = wanted
        if wanted:
            transport.resume_reading()
        else:
            transport.pause_reading()

    # --- Writing -----------------------------------------------------------------------------------------------------

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
            self.loop.call_soon(self._on_turn, self.loop)

    def _write(self) -> None:
        writer = self._writer
        core = self._core
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
            if writer.backlog + outbox.queued_bytes > self._limits.max_queued_bytes:
                self.abort(f"the peer reads too slowly: {self.queued_bytes} bytes wait for it")
                return
            if (pieces := writer.pieces + outbox.queued_messages) > self._limits.max_queued_pieces:
                self.abort(f"the peer reads too slowly: {pieces} frames and messages wait for it")
                return
            self._note_unread()
        if self._phase is Phase.FLUSHING and not writer.backlog:
            self._said_all()

    def _refill(self) -> None:
        """Move frames from the core into the writer, as far as it has room. The writer calls this, too."""
        writer = self._writer
        outbox = self._core.outbox
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
            self.loop.call_soon(self._tell_drained)
        if self._noted:
            self._note_unread()
        if self._core.events and not self._dispatching:
            self._wake()
        if room == HIGH_WATER_BYTES and (self._phase is Phase.FLUSHING or self._core.closing):
            self._wake()

    def _note_unread(self) -> None:
        """Note what waits for the peer of a listener's connection."""
        pool, writer = self.unread_pool, self._writer
        if pool is None or writer is None:
            return
        waiting = writer.backlog + self._core.outbox.queued_bytes
        if not waiting:
            self._noted = False
            pool.leave(self)
        else:
            self._noted = True
            pool.note(self, waiting + self.held_bytes, writer.total_sent, self.loop.time())
        if waiting >= self._limits.max_unread_bytes:
            self.is_unread = True
        elif self.is_unread and waiting <= self._limits.max_unread_bytes // 2:
            self.is_unread = False
            self.loop.call_soon(self._tell_read)
        self._set_reading()

    def _tell_read(self) -> None:
        if not self.is_unread:
            self._on_read()

    def handle_again(self, events: Collection[Event]) -> None:
        """Handle events before those that wait."""
        self._core.events.extendleft(reversed(list(events)))
        self._wake()

    def give_way(self) -> None:
        """End the connection: others need the memory of what its peer does not read."""
        self.abort("the peer reads too slowly, and others need the memory of what waits for it")

    def _tell_drained(self) -> None:
        if not self._behind:
            self._on_drained()

    # --- Time --------------------------------------------------------------------------------------------------------

    def _on_tick(self) -> None:
        now = self.loop.time()
        assert self._transport is not None
        self._core.on_time(now, reading=self._transport.is_reading())
        self._set_timer(now)
        if self._stalled(now):
            self.abort(f"the peer accepted no data for {self._limits.stall_timeout_s} s")
        if self._core.events or self._core.behind or self._core.closing or self._core.outbox.output:
            self._wake()

    def _set_timer(self, now: float) -> None:
        """Set the timer to the next deadline, no earlier.

        An idle node has dozens of connections, and each early timer would wake it.
        """
        assert self._transport is not None
        due = self._core.next_time(now, reading=self._transport.is_reading())
        watched = self._limits.stall_timeout_s / (4 if self.queued_bytes else 2)
        self._timer = self.loop.call_at(max(min(due, now + watched), now + SHORTEST_TICK_S), self._on_tick)

    def _stalled(self, now: float) -> bool:
        """Whether nothing of what waits was accepted for too long, because of a full socket or a closed window.

        Our own PINGs, which a socket with room accepts at once, are no progress. Only what was seen waiting counts:
        bytes queued after the last check have until the next one.
        """
        writer = self._writer
        assert writer is not None
        waits = self.queued_bytes > 0
        progress = (self._core.outbox.framed_bytes, writer.total_sent if writer.backlog else 0) if waits else None
        if progress is None or progress != self._progress:
            self._progress, self._progress_at = progress, now
        return now - self._progress_at >= self._limits.stall_timeout_s

    def _abandon(self) -> None:
        """Give up everything that is not sent."""
        self._core.abandon(self._reason)
        self._leave_pool()
        if self._writer is not None:
            self._writer.close()
        release_regions(self._core.take_output(0))

    def _leave_pool(self) -> None:
        if self.unread_pool is not None and self._noted:
            self._noted = False
            self.unread_pool.leave(self)

    # --- Closing -----------------------------------------------------------------------------------------------------

    def close_gently(self, reason: str) -> None:
        """Send the remaining output, then close."""
        self._reason = self._reason or reason
        if self._phase is not Phase.OPEN:
            return
        self._phase = Phase.FLUSHING
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(self._limits.linger_s, self.abort, self._reason)
        self.resume_reading()
        self._wake()

    def close_if_finished(self) -> None:
        """After a GOAWAY of either side, close with the last stream, once everything is sent."""
        core = self._core
        if core.closing and not (core.streams or core.failed or core.outbox.output or self.queued_bytes):
            if self.peer_said:
                self._reason = self._reason or f"the peer sent GOAWAY: {self.peer_said}"
            core.fail(ErrorCode.NO_ERROR, "the last stream ended")

    def _said_all(self) -> None:
        self._phase = Phase.LINGERING
        assert self._transport is not None
        if isinstance(self._writer, SocketWriter):
            self._writer.shutdown()
        else:
            self._transport.close()

    # --- Moving ------------------------------------------------------------------------------------------------------

    @property
    def can_move(self) -> bool:
        """Whether it can move to another loop; a TLS connection cannot, as its state is bound to its transport."""
        return isinstance(self._writer, SocketWriter)

    def move_to(self, target: asyncio.AbstractEventLoop) -> None:
        """Move to that loop before another event is handled."""
        self._move_to = target

    def _leave(self, target: asyncio.AbstractEventLoop) -> None:
        transport = self._transport
        writer = self._writer
        assert transport is not None and isinstance(writer, SocketWriter) and self._timer is not None
        self._timer.cancel()
        self._leave_pool()
        self.turns.note(self, is_behind=False)
        sock, self._moved_parts = writer.detach()
        transport.pause_reading()
        transport.set_protocol(asyncio.Protocol())  # it ends on its own; the duplicate keeps the connection
        transport.abort()
        self._transport = self._writer = self._timer = self._move_to = None
        self._flush_due = self._wake_due = self._catching_up = False
        self.loop, self._events = target, events_of(target)
        try:
            target.call_soon_threadsafe(self._arrive, sock)
        except RuntimeError:  # that loop is closed: its owner is shutting down
            self._failed_to_arrive(sock, "the loop that serves this path has stopped")

    def _arrive(self, sock: socket.socket) -> None:
        self._attaching = self.loop.create_task(self._attach(sock))

    async def _attach(self, sock: socket.socket) -> None:
        try:
            await self.loop.connect_accepted_socket(lambda: self, sock)
        except OSError as error:
            self._failed_to_arrive(sock, str(error))
        except Exception as error:  # a bug: the connection's users would wait for its end
            self._failed_to_arrive(sock, repr(error))
            raise
        finally:
            self._attaching = None

    def _failed_to_arrive(self, sock: socket.socket, reason: str) -> None:
        sock.close()
        release_regions(self._moved_parts)
        self._moved_parts = []
        self._reason = reason
        self.connection_lost(None)


def peer_address(transport: asyncio.BaseTransport) -> str:
    """Return `host:port` of the other end, for display."""
    peername = transport.get_extra_info("peername")
    if isinstance(peername, tuple) and len(peername) >= 2:
        host, port = peername[:2]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return str(peername or "?")
