"""The pace of one caller on one stream: over its quota, its next requests wait (S11).

As in Kafka, a request that has arrived is served, and its caller waits until what it took beyond its rate is paid off.
The answers say for how long (`throttle_ms`). Requests that arrive meanwhile wait in a bounded line; those beyond it get
`throttled`, which is safe to retry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from raftlog.broker.security.quotas.quotas import Quotas, Rate
from raftlog.config import MIB
from raftlog.errors import RaftlogError
from raftlog.http2 import Http2Stream
from raftlog.http2.connection import StreamHandler
from raftlog.ports import Clock, Part, Scheduler, Timer, part_length
from raftlog.security.principals import Caller
from raftlog.wire import ErrorResponse, Response, ThrottledResponse, decode_request, encode

MAX_WAITING_REQUESTS = 256
MAX_WAITING_BYTES = 8 * MIB

STREAM_RATES = (Rate.REQUESTS, Rate.BYTES_IN, Rate.BYTES_OUT, Rate.METADATA_COMMANDS)
"""The rates that requests of a stream are charged to."""

Told = TypeVar("Told", bound=Response)


class Pace:
    """The debt of one caller on one stream, which begins with what the caller owes already: another stream is no way
    around a quota. All calls are made on the broker's loop."""

    __slots__ = ("_caller", "_clock", "_quotas", "_until")

    def __init__(self, quotas: Quotas, caller: Caller, clock: Clock) -> None:
        self._quotas = quotas
        self._caller = caller
        self._clock = clock
        now = clock.monotonic()
        debt = max(quotas.wait(caller, rate, now) for rate in STREAM_RATES)
        self._until = now + debt if debt else 0.0

    def wait(self) -> float:
        """Return the seconds until the next request is served; 0: it is served now."""
        return max(self._until - self._clock.monotonic(), 0.0) if self._until else 0.0

    def arrived(self, size: int) -> None:
        """Charge a request of `size` bytes."""
        self._charge(Rate.REQUESTS, 1)
        self._charge(Rate.BYTES_IN, size)

    def changes(self) -> None:
        """Charge a request that makes the quorum decide."""
        self._charge(Rate.METADATA_COMMANDS, 1)

    def answered(self, response: Response, parts: Sequence[Part]) -> Response:
        """Charge the records of an answer, and return it with the time that the caller has to wait."""
        self._charge(Rate.BYTES_OUT, sum(map(part_length, parts)))
        if not self._until or not isinstance(response, ThrottledResponse):
            return response
        throttle_ms = int(self.wait() * 1000)
        return msgspec.structs.replace(response, throttle_ms=throttle_ms) if throttle_ms else response

    def _charge(self, rate: Rate, amount: int) -> None:
        now = self._clock.monotonic()
        wait = self._quotas.charge(self._caller, rate, amount, now)
        if wait:
            self._until = max(self._until, now + wait)


class PacedStream:
    """A stream's handler at the pace of its caller: a `StreamHandler`."""

    def __init__(self, stream: Http2Stream, requests: StreamHandler, pace: Pace, scheduler: Scheduler) -> None:
        self._stream = stream
        self._requests = requests
        self._pace = pace
        self._scheduler = scheduler
        self._waiting: deque[memoryview] = deque()
        self._waiting_bytes = 0
        self._timer: Timer | None = None
        self._ended = False

    def on_message(self, stream: Http2Stream, message: memoryview) -> None:
        if self._timer is None and not self._pace.wait():
            self._serve(message)
        elif len(self._waiting) < MAX_WAITING_REQUESTS and self._waiting_bytes + message.nbytes <= MAX_WAITING_BYTES:
            self._waiting.append(message)
            self._waiting_bytes += message.nbytes
            self._schedule()
        else:
            self._refuse(message)

    def on_ended(self, stream: Http2Stream) -> None:
        self._ended = True
        if not self._waiting:
            self._requests.on_ended(stream)

    def on_closed(self, stream: Http2Stream, reason: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._waiting.clear()
        self._requests.on_closed(stream, reason)

    def _schedule(self) -> None:
        if self._timer is None:
            self._timer = self._scheduler.call_later(self._pace.wait(), self._go_on)

    def _go_on(self) -> None:
        self._timer = None
        while self._waiting and not self._stream.closed:
            if self._pace.wait():
                self._schedule()
                return
            message = self._waiting.popleft()
            self._waiting_bytes -= message.nbytes
            self._serve(message)
        if self._ended and not self._stream.closed:
            self._requests.on_ended(self._stream)

    def _serve(self, message: memoryview) -> None:
        self._pace.arrived(message.nbytes)
        self._requests.on_message(self._stream, message)

    def _refuse(self, message: memoryview) -> None:
        try:
            number = decode_request(message)[0].correlation_id
        except RaftlogError:
            number = -1
        wait = self._pace.wait()
        detail = f"the quota of this user or address is used up for {wait:.1f} s, and too many requests wait already"
        self._stream.send(encode(ErrorResponse(number, "throttled", detail)))
