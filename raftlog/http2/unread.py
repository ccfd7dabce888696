"""Answers that peers do not take: the requests that wait behind them, and the budget of a listener. A pure core.

A request is not handled while its connection's answers wait. While the socket is full, nothing is read either, so the
peer's own sending stops. While only the peer's windows are shut, its frames are read, because one of them may open a
window; its messages are held meanwhile, within bounds.

All connections of a listener on one loop share an `UnreadPool`. If it is full, the peer that has read most slowly gives
way: an honest one reads.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from .events import MessageReceived, StreamEnded

HELD_EVENTS = 10_000
"""Limit of the held messages and ends of a connection; their bytes have one, too. A message may be held if those before
it are below both."""
HONEST_S = 1.0
"""Time for which no reader is judged, in seconds: a reader has just begun."""

Held: TypeAlias = MessageReceived | StreamEnded


class HeldInput:
    """The messages and ends of streams that wait, in their order."""

    __slots__ = ("_events", "_limit", "nbytes")

    def __init__(self, limit: int) -> None:
        """`limit`: in bytes. A peer that reads is not refused for requests as large as the answers that wait for it."""
        self._events: deque[Held] = deque()
        self._limit = limit
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._events)

    def add(self, event: Held) -> bool:
        """Hold an event; return False if there is no room for a message."""
        if isinstance(event, MessageReceived):
            if self.nbytes >= self._limit or len(self._events) >= HELD_EVENTS:
                return False
            self.nbytes += event.message.nbytes
        self._events.append(event)
        return True

    def take(self) -> deque[Held]:
        """Return everything that was held, and hold nothing."""
        events, self._events = self._events, deque()
        self.nbytes = 0
        return events


class SlowReader(Protocol):
    """A connection whose peer has not taken everything."""

    def give_way(self) -> None:
        """End the connection."""
        ...


@dataclass(slots=True)
class _Waiting:
    """The bytes that wait for one peer, since when some wait, and the bytes that it had taken by then and has now."""

    count: int
    since: float
    taken_before: int
    taken: int

    def rate(self, now: float) -> float:
        """Return the bytes a second that the peer took since then."""
        return (self.taken - self.taken_before) / max(now - self.since, HONEST_S)


class UnreadPool:
    """Bytes that wait for the peers of many connections, all on one loop.

    Invariant: `used` is the sum of what was noted last.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: dict[SlowReader, _Waiting] = {}
        self.used = 0

    def note(self, reader: SlowReader, count: int, taken: int, now: float) -> None:
        """Note that `count` bytes wait for a reader, which has taken `taken` since its connection began. Readers may
        have to give way, this one included."""
        known = self._waiting.get(reader)
        if known is None:
            known = self._waiting[reader] = _Waiting(0, now, taken, taken)
        self.used += count - known.count
        known.count, known.taken = count, taken
        if self.used > self._limit:
            self._make_room(now)

    def leave(self, reader: SlowReader) -> None:
        """Note that nothing waits for a reader any more."""
        known = self._waiting.pop(reader, None)
        if known is not None:
            self.used -= known.count

    def _make_room(self, now: float) -> None:
        while self.used > self._limit and self._waiting:
            judged = [one for one, known in self._waiting.items() if now - known.since >= HONEST_S]
            slowest = min(judged or self._waiting, key=lambda one: self._waiting[one].rate(now))
            self.leave(slowest)
            slowest.give_way()
