"""Arbitrary bytes give a GOAWAY with a code or a closed connection, never an exception, never an unbounded buffer.

And the correct case: two cores with any frame sizes, windows, pieces and message sizes deliver every message once, in
order.
"""

from __future__ import annotations

import random
from typing import TypeAlias

from hyperframe.frame import GoAwayFrame
from hypothesis import example, given, settings
from hypothesis import strategies as st

from raftlog.http2.core import ConnectionCore
from raftlog.http2.events import (
    ConnectionFailed,
    MessageReceived,
    NotHttp2,
    RequestReceived,
    StreamClosed,
    StreamEnded,
)
from raftlog.http2.frames import PREFACE, ErrorCode
from raftlog.http2.limits import Http2Limits
from raftlog.http2.receiving import STAGING_BYTES
from raftlog.http2.stream_table import StreamState
from tests.support.http.http2_peer import RawPeer, data_frame, only, parse, prefixed, raw_frame, settings_frame

SMALL = Http2Limits(
    max_message_bytes=50_000, max_partial_bytes=120_000, max_concurrent_streams=4, control_frames_burst=50
)

ids = st.sampled_from([0, 1, 1, 1, 2, 3, 5, 7, 2**31 - 1, 2**32 - 1])
kinds = st.sampled_from([0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 8, 9, 10, 200])
numbers = st.sampled_from(
    [b"\0\0\0\0", b"\0\0\0\1", b"\0\0\0\7", b"\0\1\0\0", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff"]
)
payloads = st.one_of(st.binary(max_size=40), numbers, st.lists(numbers, max_size=4).map(b"".join))
any_frames = st.builds(raw_frame, kinds, st.integers(0, 255), ids, payloads)
settings_frames = st.builds(
    lambda pairs: raw_frame(4, 0, 0, b"".join(k.to_bytes(2, "big") + v for k, v in pairs)),
    st.lists(st.tuples(st.integers(0, 9), numbers), max_size=4),
)
messages = st.lists(st.integers(0, 3000).map(lambda size: b"m" * size), max_size=3).map(lambda m: prefixed(*m))
data_frames = st.builds(
    lambda stream_id, data, end, padding: data_frame(stream_id, data, end=end, padding=padding),
    st.sampled_from([1, 1, 3, 5]),
    st.one_of(messages, st.binary(max_size=30)),
    st.booleans(),
    st.one_of(st.none(), st.integers(0, 20)),
)
Answer: TypeAlias = tuple[int, list[tuple[str, str]], bool]
statuses = st.sampled_from(["200", "404", "503", "103", "", "abc", "+20", "9" * 5000]).map(lambda s: [(":status", s)])
answers = st.tuples(st.sampled_from([1, 3, 5, 7, 9]), st.one_of(statuses, st.just([("x", "y")])), st.booleans())
"""Frames for a listener: header blocks, possibly of answers, and trailers."""
REQUESTS = "open"
AGAIN = "again"
"""Trailers, or a request on a stream that has been used."""
steps = st.lists(st.one_of(st.sampled_from([REQUESTS, AGAIN]), data_frames, any_frames, settings_frames), max_size=25)


def check_end(peer: RawPeer) -> None:
    """In any case the buffers are bounded, and if it is over, there was one GOAWAY with a code."""
    core = peer.core
    assert core.facts().partial_bytes <= core.limits.max_partial_bytes
    assert core.facts().staging_bytes <= STAGING_BYTES
    assert len(core.streams) <= core.limits.max_concurrent_streams
    goaways = only(peer.frames(), GoAwayFrame)
    failures = only(peer.events(), ConnectionFailed)
    assert len(goaways) == len(failures) <= 1
    if failures:
        assert core.failed and not core.streams and core.facts().partial_bytes == 0
        assert goaways[0].error_code == failures[0].code
        assert failures[0].code in list(ErrorCode) and failures[0].reason


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300), st.integers(1, 64), st.booleans(), st.booleans())
@example(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" * 3, 1, False, False)
def test_any_bytes(data: bytes, piece: int, core_dials: bool, handshake: bool) -> None:
    peer = RawPeer(core_dials=core_dials, limits=SMALL, handshake=handshake)
    if handshake and not core_dials:
        peer.open()
        peer.frames()
    peer.feed(data, piece)
    if peer.core.awaits_preface:
        assert peer.output() == b""
        assert peer.core.failed == bool(only(peer.events(), NotHttp2))
        return
    check_end(peer)


def play(peer: RawPeer, script: list[str | bytes], piece: int, chance: random.Random) -> list[str]:
    """Run the script and collect the core's events; requests are answered, refused, ended or reset at random."""
    told: list[str] = []
    opened = 0
    for step in script:
        if isinstance(step, bytes):
            peer.feed(step, piece)
        elif step == AGAIN and opened:
            again = chance.randrange(opened)
            fields = peer.request() if chance.randrange(2) else [("x", "y")]
            peer.feed(peer.headers(2 * again + 1, fields, end=True), piece)
        else:
            opened += 1
            peer.feed(peer.headers(2 * opened - 1, peer.request()), piece)
        for event in peer.events():
            told.append(type(event).__name__)
            if isinstance(event, ConnectionFailed):
                peer.core.events.append(event)
                break
            if isinstance(event, MessageReceived):
                told.append(f"{event.stream.id}:{len(event.message)}")
                peer.core.send(event.stream, [bytes(event.message)])
            elif isinstance(event, RequestReceived):
                [peer.core.respond, peer.core.respond, lambda s: peer.core.refuse(s, 404, "no")][chance.randrange(3)](
                    event.stream
                )
            elif isinstance(event, StreamEnded) and chance.randrange(2):
                peer.core.end(event.stream)
        if peer.core.failed:
            break
    return told


@settings(max_examples=600, deadline=None)
@given(steps, st.sampled_from([1, 3, 10, 1000, 2**20]), st.integers(0, 10))
def test_any_frames(script: list[str | bytes], piece: int, seed: int) -> None:
    peer = RawPeer(limits=SMALL)
    play(peer, script, piece, random.Random(seed))
    check_end(peer)


@settings(max_examples=200, deadline=None)
@given(steps, st.integers(1, 50), st.integers(0, 10))
def test_the_split_into_pieces_changes_nothing(script: list[str | bytes], piece: int, seed: int) -> None:
    outcomes = []
    for size in (2**20, piece):
        peer = RawPeer(limits=SMALL)
        told = play(peer, script, size, random.Random(seed))
        outcomes.append((told, peer.core.failed, [e.code for e in only(peer.events(), ConnectionFailed)]))
    assert outcomes[0] == outcomes[1]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.one_of(any_frames, settings_frames, data_frames, answers), max_size=20),
    st.sampled_from([1, 7, 2**20]),
    st.sets(st.integers(0, 3)),
)
def test_any_frames_to_the_dialing_side(script: list[bytes | Answer], piece: int, ended: set[int]) -> None:
    peer = RawPeer(core_dials=True, limits=SMALL)
    for number, answered in enumerate((True, False, True, False)):
        stream = peer.dialed(answered=answered)
        if number in ended:
            peer.core.end(stream)
    peer.frames()
    for step in script:
        peer.feed(step if isinstance(step, bytes) else peer.headers(step[0], step[1], end=step[2]), piece)
    check_end(peer)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_good_session_with_one_byte_changed(data: st.DataObject) -> None:
    peer = RawPeer(handshake=False, limits=SMALL)
    wire = bytearray(
        PREFACE
        + settings_frame({4: 2**31 - 1, 5: 2**24 - 1})
        + peer.headers(1, peer.request("/raftlog.replication", extra=[("raftlog-node", "1")]))
        + data_frame(1, prefixed(b"a" * 100, b"b" * 5000), padding=3)
        + raw_frame(6, 0, 0, b"8 bytes!")
        + data_frame(1, prefixed(b"c" * 1000), end=True)
    )
    position = data.draw(st.integers(0, len(wire) - 1))
    wire[position] ^= data.draw(st.integers(1, 255))
    peer.feed(bytes(wire), data.draw(st.sampled_from([1, 9, 1000])))
    if peer.core.awaits_preface:
        assert peer.core.failed == (position < len(PREFACE))
    else:
        check_end(peer)


# --- Two cores -------------------------------------------------------------------------------------------------------

sizes = st.one_of(st.integers(0, 40), st.sampled_from([4091, 4092, 4093, 16_379, 16_380, 16_381, 65_531, 65_536]))
many_sizes = st.lists(st.one_of(sizes, st.integers(0, 400_000)), max_size=8)
some_limits = st.builds(
    Http2Limits,
    max_frame_bytes=st.sampled_from([2**14, 2**14 + 1, 100_000, 2**24 - 1]),
    window_bytes=st.sampled_from([65_535, 100_000, 2**31 - 1]),
    unaccepted_window_bytes=st.sampled_from([65_535, 80_000, 2**31 - 1]),
)


class Wire:
    """Bytes in flight between two cores, delivered in pieces of any size."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.bytes = bytearray()

    def carry(self, source: ConnectionCore, target: ConnectionCore) -> None:
        for part in source.take_output(self.chance.choice([0, 1, 20_000, 10**6])):
            self.bytes += bytes(part)  # type: ignore[arg-type]
        count = self.chance.choice([1, 100, 10_000, 10**6])
        while count and self.bytes:
            buffer = target.get_buffer()
            size = min(len(buffer), count, len(self.bytes))
            buffer[:size] = self.bytes[:size]
            del self.bytes[:size]
            count -= size
            target.received(size, 0.0)
            while target.behind:
                target.received(0, 0.0)


@settings(max_examples=150, deadline=None)
@given(some_limits, some_limits, st.lists(many_sizes, min_size=1, max_size=3), many_sizes, st.integers(0, 2**32))
def test_two_cores_deliver_every_message_once_and_in_order(
    ours: Http2Limits, theirs: Http2Limits, asked: list[list[int]], answered: list[int], seed: int
) -> None:
    chance = random.Random(seed)
    client = ConnectionCore(client=True, limits=ours, now=0.0)
    server = ConnectionCore(client=False, limits=theirs, now=0.0)
    there, back = Wire(chance), Wire(chance)
    bodies = [[bytes([i % 256]) * size for i, size in enumerate(stream)] for stream in asked]
    replies = [bytes([i % 256]) * size for i, size in enumerate(answered)]
    got: dict[int, list[bytes]] = {}
    got_back: dict[int, list[bytes]] = {}
    closed: list[str] = []
    opened: list[StreamState] = []
    for turn in range(20_000):
        if turn < len(bodies):
            stream = client.open_stream("/x", "a", "http", [])
            opened.append(stream)
            for body in bodies[turn]:
                half = chance.randrange(len(body) + 1)
                client.send(stream, [body[:half], memoryview(body)[half:]])
            client.end(stream)
        there.carry(client, server)
        back.carry(server, client)
        for core, into in ((server, got), (client, got_back)):
            while core.events:
                event = core.events.popleft()
                if isinstance(event, MessageReceived):
                    into.setdefault(event.stream.id, []).append(bytes(event.message))
                elif isinstance(event, RequestReceived):
                    server.respond(event.stream)
                    for reply in replies:
                        server.send(event.stream, [reply])
                elif isinstance(event, StreamEnded) and core is server:
                    server.end(event.stream)
                elif isinstance(event, StreamClosed):
                    closed.append(event.reason)
                assert not isinstance(event, ConnectionFailed), event
        if len(closed) == 2 * len(bodies):
            break
    assert closed == ["ended"] * (2 * len(bodies))
    for stream, sent in zip(opened, bodies, strict=True):
        assert got.get(stream.id, []) == sent
        assert got_back.get(stream.id, []) == replies
    for core in (client, server):
        assert core.outbox.queued_bytes == 0 and core.facts().partial_bytes == 0 and not core.streams


def test_parse_of_the_support_library_reads_its_own_frames() -> None:
    assert len(parse(PREFACE + settings_frame() + data_frame(1, b"x", padding=3))) == 2
