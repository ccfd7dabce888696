"""Streams whose acceptance takes time: their messages wait, the connection's other streams go on (S12)."""

from __future__ import annotations

import pytest

from raftlog.errors import InvalidRequest, RetriableError
from raftlog.http2 import Http2Limits, Http2Stream
from raftlog.http2.limits import DEFAULT_WINDOW
from tests.support.http.http2_server import Recorder, Server, echo, until

pytestmark = pytest.mark.integration

LIMITS = Http2Limits(unaccepted_window_bytes=DEFAULT_WINDOW)


class Deferring(Server):
    """A server whose streams at /later are decided by the test."""

    def __init__(self) -> None:
        super().__init__(LIMITS)
        self.waiting: list[Http2Stream] = []
        self.acceptors["/later"] = self.waiting.append  # type: ignore[assignment]


async def test_messages_wait_for_the_acceptance_and_other_streams_do_not() -> None:
    async with Deferring() as server:
        connection = await server.dial()
        late, other = Recorder(), Recorder()
        stream = connection.open_stream("/later", {"authorization": "Bearer x"}, late)
        large = b"z" * 1_000_000
        stream.send([b"a"])
        stream.send([large])
        await until(lambda: len(server.waiting) == 1)
        connection.open_stream("/echo", {}, other).send([b"b"])
        assert await other.wait(1) == [b"<b>"]
        (waiting,) = server.waiting
        assert waiting.authorization is not None and waiting.authorization.reveal() == "Bearer x"
        assert stream.status is None and stream.queued_bytes > 900_000, "the window holds the rest back"
        waiting.accept(Recorder(echo))
        assert await late.wait(2) == [b"<a>", b"<" + large + b">"]
        assert "authorization" not in stream.headers


async def test_a_refusal_names_its_code_and_hands_out_no_message() -> None:
    async with Deferring() as server:
        connection = await server.dial()
        recorder = Recorder()
        stream = connection.open_stream("/later", {}, recorder)
        stream.send([b"a"])
        await until(lambda: len(server.waiting) == 1)
        server.waiting[0].refuse(InvalidRequest("unauthenticated", "no credential"))
        server.waiting[0].accept(Recorder(echo))  # too late
        assert "refused with 401 unauthenticated" in await recorder.reason()
        assert isinstance(stream.refusal, InvalidRequest)
        assert (stream.status, stream.refusal.code, stream.refusal.detail) == (401, "unauthenticated", "no credential")
        assert recorder.messages == []


async def test_a_refusal_for_the_moment_is_retriable() -> None:
    async with Deferring() as server:
        connection = await server.dial()
        recorder = Recorder()
        stream = connection.open_stream("/later", {}, recorder)
        await until(lambda: len(server.waiting) == 1)
        server.waiting[0].refuse(RetriableError("overloaded", "busy"))
        await recorder.reason()
        assert isinstance(stream.refusal, RetriableError) and stream.status == 503


async def test_a_stream_that_ended_meanwhile_is_neither_accepted_nor_refused() -> None:
    async with Deferring() as server:
        connection = await server.dial()
        recorder, handler = Recorder(), Recorder(echo)
        stream = connection.open_stream("/later", {}, recorder)
        stream.send([b"a"])
        await until(lambda: len(server.waiting) == 1)
        stream.reset()
        await until(lambda: server.waiting[0].closed)
        server.waiting[0].accept(handler)
        server.waiting[0].refuse(InvalidRequest("unauthenticated", "no"))
        other = Recorder()
        connection.open_stream("/echo", {}, other).send([b"b"])
        assert await other.wait(1) == [b"<b>"]
        assert handler.messages == [] and not handler.closed.done()
