"""The other end of an HTTP/2 connection, driven by hand: frames of any kind, legal or not, and the received frames.

Frames are built and parsed with hyperframe and hpack, not with raftlog's own code, so that both sides cannot share a
mistake.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from raftlog.http2.core import ConnectionCore
from raftlog.http2.events import ConnectionFailed, Event, MessageReceived, RequestReceived, StreamClosed
from raftlog.http2.frames import PREFACE
from raftlog.http2.limits import Http2Limits
from raftlog.http2.messages import PartialPool
from raftlog.http2.stream_table import StreamState
from raftlog.ports import FileRegion

F = TypeVar("F", bound=Frame)
E = TypeVar("E")

ROOM = 2**40


def prefixed(*messages: bytes) -> bytes:
    """Messages in their wire format."""
    return b"".join(len(message).to_bytes(4, "big") + message for message in messages)


def parse(data: bytes) -> list[Frame]:
    """Parse all frames of a byte string of complete frames (possibly with a client's preface)."""
    data = data.removeprefix(PREFACE)
    frames = []
    while data:
        frame, length = Frame.parse_frame_header(memoryview(data[:9]))
        assert len(data) >= 9 + length, "a frame was cut"
        frame.parse_body(memoryview(data[9 : 9 + length]))
        frames.append(frame)
        data = data[9 + length :]
    return frames


def settings_frame(values: dict[int, int] | None = None, *, ack: bool = False) -> bytes:
    frame = SettingsFrame(0, settings=values or {})
    if ack:
        frame.flags.add("ACK")
    return frame.serialize()


def data_frame(stream_id: int, data: bytes, *, end: bool = False, padding: int | None = None) -> bytes:
    frame = DataFrame(stream_id, data)
    if end:
        frame.flags.add("END_STREAM")
    if padding is not None:
        frame.flags.add("PADDED")
        frame.pad_length = padding
    return frame.serialize()


def window_update(stream_id: int, increment: int) -> bytes:
    return WindowUpdateFrame(stream_id, window_increment=increment).serialize()


def reset(stream_id: int, code: int = 8) -> bytes:
    return RstStreamFrame(stream_id, error_code=code).serialize()


def raw_frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream_id.to_bytes(4, "big") + payload


class RawPeer:
    """A peer of one `ConnectionCore`, driven by hand. By default the core listens, and the handshake is done."""

    def __init__(
        self,
        *,
        core_dials: bool = False,
        limits: Http2Limits | None = None,
        settings: dict[int, int] | None = None,
        handshake: bool = True,
        pool: PartialPool | None = None,
    ) -> None:
        self.now = 1000.0
        self.core = ConnectionCore(client=core_dials, limits=limits or Http2Limits(), now=self.now, pool=pool)
        self.hpack = Encoder()
        if handshake:
            self.feed((b"" if core_dials else PREFACE) + settings_frame(settings) + settings_frame(ack=True))
            self.handshake = self.frames()
            self.events()

    def feed(self, data: bytes, piece: int = 2**30) -> None:
        """Let the core receive these bytes, at most `piece` at a time."""
        position = 0
        while position < len(data):
            buffer = self.core.get_buffer()
            assert len(buffer) > 0
            count = min(len(buffer), piece, len(data) - position)
            buffer[:count] = data[position : position + count]
            self.core.received(count, self.now)
            while self.core.behind:
                self.core.received(0, self.now)
            position += count

    def headers(self, stream_id: int, fields: Iterable[tuple[str, str]], *, end: bool = False, split: int = 0) -> bytes:
        """HEADERS, cut into frames of `split` bytes if that is given."""
        block = self.hpack.encode(list(fields))
        pieces = [block[i : i + split] for i in range(0, len(block), split)] if split else [block]
        frames: list[HeadersFrame | ContinuationFrame] = [HeadersFrame(stream_id, pieces[0])]
        frames += [ContinuationFrame(stream_id, piece) for piece in pieces[1:]]
        if end:
            frames[0].flags.add("END_STREAM")
        frames[-1].flags.add("END_HEADERS")
        return b"".join(frame.serialize() for frame in frames)

    def request(
        self, path: str = "/x", method: str = "POST", extra: Iterable[tuple[str, str]] = ()
    ) -> list[tuple[str, str]]:
        return [(":method", method), (":scheme", "http"), (":authority", "a"), (":path", path), *extra]

    def open(self, stream_id: int = 1, *, end: bool = False, extra: Iterable[tuple[str, str]] = ()) -> StreamState:
        """A stream that the core has accepted."""
        self.feed(self.headers(stream_id, self.request(extra=extra), end=end))
        (event,) = [event for event in self.core.events if isinstance(event, RequestReceived)]
        self.core.events.remove(event)
        self.core.respond(event.stream)
        return event.stream

    def dialed(self, *, answered: bool = True, extra: Iterable[tuple[str, str]] = ()) -> StreamState:
        """A stream that the core opened and this peer accepted."""
        stream = self.core.open_stream("/x", "a", "http", [])
        if answered:
            self.feed(self.headers(stream.id, [(":status", "200"), *extra]))
            self.events()
        return stream

    def output(self, room: int = ROOM) -> bytes:
        """Return everything that the core wants to send; regions of files are read."""
        pieces = []
        for part in self.core.take_output(room):
            if isinstance(part, FileRegion):
                pieces.append(part.file.pread(part.length, part.position))
                part.release()
            else:
                pieces.append(bytes(part))
        return b"".join(pieces)

    def frames(self, room: int = ROOM) -> list[Frame]:
        return parse(self.output(room))

    def events(self) -> list[Event]:
        events = list(self.core.events)
        self.core.events.clear()
        return events

    def messages(self) -> list[bytes]:
        """Return the messages delivered since the last call; there must be no other events."""
        events = self.events()
        assert all(isinstance(event, MessageReceived) for event in events), events
        return [bytes(event.message) for event in events if isinstance(event, MessageReceived)]

    def goaway(self) -> tuple[int, str]:
        """Return code and text of the GOAWAY with which the core must have closed the connection."""
        frames = only(self.frames(), GoAwayFrame)
        assert len(frames) == 1, frames
        failed = only(self.events(), ConnectionFailed)
        assert len(failed) == 1 and failed[0].code == frames[0].error_code
        assert self.core.failed and not self.core.streams
        return frames[0].error_code, frames[0].additional_data.decode()

    def reset_code(self) -> int:
        """Return the code of the one stream that the core reset; the connection must be alive."""
        frames = only(self.frames(), RstStreamFrame)
        assert len(frames) == 1 and not self.core.failed, frames
        assert len(only(self.events(), StreamClosed)) == 1
        return frames[0].error_code


def only(items: Sequence[object], kind: type[E]) -> list[E]:
    return [item for item in items if isinstance(item, kind)]
