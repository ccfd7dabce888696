"""Channels: how a fetcher requests batches from a broker, in a fetch session if possible.

Over HTTP/2, requests form a session (`raftlog/wire.py`): each partition is named once, in a slot, and again only after
it was answered, so a long poll over any number of idle partitions takes some twenty bytes each way. Through the API, or
if the broker has no room for a session, every request names all of its partitions (`PlainChannel`).

A partition is requested in one place at a time. Its reader knows by a number which answer still counts (`reader.py`);
answers to abandoned requests are ignored, whatever their content. If a broker does not know a session, or answers it
with an error, the whole session is abandoned and all of its partitions are requested in a new one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple, TypeAlias

from raftlog.client.cluster.broker_request import BrokerRequest
from raftlog.client.cluster.transport import Connection
from raftlog.client.cluster.transport_http1 import ApiConnection
from raftlog.client.settings import ConsumerSettings
from raftlog.errors import RaftlogError, RetriableError, error_from_code
from raftlog.wire import (
    FETCH_PATH,
    MAX_PARTITIONS_PER_REQUEST,
    ErrorResponse,
    FetchedPartition,
    FetchedSlot,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    Request,
    Response,
    SessionFetchRequest,
    SessionFetchResponse,
    SlotToFetch,
    split_body,
)

from .reader import PartitionReader

ANSWER_GRACE = 10.0
"""Seconds beyond the long poll after which the connection is aborted."""

MAX_POLLS = 4
"""Limit of open long polls per broker."""
MAX_AT_ONCE = 8
"""Limit of open polls that do not wait; a broker accepts 16 requests in flight per session."""
SESSION_AGAIN = 30.0
"""Seconds without sessions after a broker had no room for one."""

Answer: TypeAlias = FetchedPartition | FetchedSlot

Answered: TypeAlias = Callable[[Response, memoryview], None]

Question: TypeAlias = "list[tuple[PartitionReader, int]]"
"""Readers with the numbers of their requests."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Receives fetch results.

    Callbacks must not issue a new fetch re-entrantly.
    """

    on_answer: Callable[[PartitionReader, Answer, memoryview], None]
    """Called with batches, watermarks or an error; with watermarks only for a slot that keeps waiting."""
    on_failed: Callable[[PartitionReader, RaftlogError], None]
    """Called if the request was not answered."""
    on_poll_over: Callable[[int, RaftlogError | None], None]
    """Called with the bytes granted to a poll when it ends, after its answers."""


class Channel:
    """The common part of both kinds of channel."""

    max_polls: ClassVar[int] = MAX_POLLS

    def __init__(self, connection: Connection, settings: ConsumerSettings, calls: Calls) -> None:
        self.connection = connection
        self.open_polls = 0
        self.open_bytes = 0
        """Sum of the bytes granted to open polls."""
        self.waiting_bytes = 0
        """Bytes that earlier requests could still bring, with any poll."""
        self.refused = False
        """Whether the broker has no room for sessions."""
        self._settings = settings
        self._calls = calls

    @property
    def needs_poll(self) -> bool:
        """Whether partitions wait for an answer that no open poll could bring."""
        return False

    @property
    def is_full(self) -> bool:
        """Whether no poll can be sent until one ends."""
        return self.open_polls >= self.max_polls

    def poll(self, topic_id: bytes, asked: Sequence[tuple[PartitionReader, int]], max_bytes: int) -> None:
        """Request these partitions, with a limit of bytes each, and those that are still waiting.

        `max_bytes`: the limit for all together.
        """
        raise NotImplementedError

    def drop(self, reader: PartitionReader) -> None:
        """Stop requesting this partition here."""

    def give_up(self) -> list[PartitionReader]:
        """Abandon the channel of an unusable connection; return the readers to request elsewhere."""
        return []

    def _send(
        self,
        make: Callable[[int], Request],
        max_bytes: int,
        answered: Answered,
        lost: Callable[[RaftlogError], None],
    ) -> None:
        self.open_polls += 1
        self.open_bytes += max_bytes
        try:
            timeout = self._settings.max_wait + ANSWER_GRACE
            self.connection.request(BrokerRequest(FETCH_PATH, make, timeout, answered, lost))
        except RaftlogError as error:
            lost(error)

    def _over(self, max_bytes: int, error: RaftlogError | None = None) -> None:
        self.open_polls -= 1
        self.open_bytes -= max_bytes
        self._calls.on_poll_over(max_bytes, error)

    def _nonsense(self) -> RaftlogError:
        self.connection.close("an answer did not match its request")
        return RetriableError("connection_lost", "an answer did not match its request")


class PlainChannel(Channel):
    """A channel whose polls and answers name all of their partitions."""

    def poll(self, topic_id: bytes, asked: Sequence[tuple[PartitionReader, int]], max_bytes: int) -> None:
        question = [(reader, reader.ask()) for reader, _ in asked]
        partitions = [
            FetchPartition(topic_id, reader.partition, reader.fetch_offset, most, reader.leader_epoch)
            for reader, most in asked
        ]
        make = partial(
            FetchRequest,
            max_wait_ms=self._settings.max_wait_ms,
            min_bytes=max(1, self._settings.min_bytes),
            max_bytes=max_bytes,
            partitions=partitions,
            isolation=self._settings.isolation_level,
        )
        answered = partial(self._answered, question, max_bytes)
        self._send(make, max_bytes, answered, partial(self._lost, question, max_bytes))

    def _answered(self, question: Question, max_bytes: int, response: Response, body: memoryview) -> None:
        if isinstance(response, ErrorResponse):
            self._lost(question, max_bytes, error_from_code(response.error, response.detail))
            return
        if not isinstance(response, FetchResponse) or len(response.partitions) != len(question):
            self._lost(question, max_bytes, self._nonsense())
            return
        pieces = split_body(body, [answer.length for answer in response.partitions])
        for (reader, number), answer, piece in zip(question, response.partitions, pieces, strict=True):
            if reader.answered(number):
                self._calls.on_answer(reader, answer, piece)
        self._over(max_bytes)

    def _lost(self, question: Question, max_bytes: int, error: RaftlogError) -> None:
        for reader, number in question:
            if reader.answered(number):
                self._calls.on_failed(reader, error)
        self._over(max_bytes, error)


class _Slot(NamedTuple):
    reader: PartitionReader
    number: int
    """Number of its request."""
    max_bytes: int


class SessionChannel(Channel):
    """A channel with a fetch session.

    Invariant: every reader in `_slots` has a slot at the broker, or will have one with a request in flight, and
    `waiting_bytes` is the sum of their `max_bytes`.
    """

    max_polls = MAX_POLLS + MAX_AT_ONCE

    def __init__(self, connection: Connection, settings: ConsumerSettings, calls: Calls) -> None:
        super().__init__(connection, settings, calls)
        self._session = 0
        """Number of the session; 0: the next poll begins one."""
        self.begun = 0
        """Number of sessions so far."""
        self._numbers = itertools.count(1)
        self._slots: dict[int, _Slot] = {}
        self._slot_of: dict[PartitionReader, int] = {}
        self._dropped: list[int] = []

    @property
    def needs_poll(self) -> bool:
        return bool(self._slots) and not self.open_polls

    def poll(self, topic_id: bytes, asked: Sequence[tuple[PartitionReader, int]], max_bytes: int) -> None:
        dropped, self._dropped = self._dropped[:MAX_PARTITIONS_PER_REQUEST], self._dropped[MAX_PARTITIONS_PER_REQUEST:]
        begins = not self._session
        if begins:
            self.begun += 1
            self._session = self.begun
        # With all long polls open, perhaps for idle partitions, this one only names slots: the open polls bring the
        # data.
        wait = self._settings.max_wait if self.open_polls < MAX_POLLS else 0.0
        make = partial(
            SessionFetchRequest,
            session=self._session,
            begins=begins,
            max_wait_ms=int(wait * 1000),
            min_bytes=max(1, self._settings.min_bytes),
            max_bytes=max_bytes,
            added=[self._slot(topic_id, reader, most) for reader, most in asked],
            dropped=dropped,
            isolation=self._settings.isolation_level,
        )
        answered = partial(self._answered, self._session, max_bytes)
        self._send(make, max_bytes, answered, partial(self._lost, self._session, max_bytes))

    def _slot(self, topic_id: bytes, reader: PartitionReader, most: int) -> SlotToFetch:
        self.drop(reader)
        number = next(self._numbers)
        self._slots[number] = _Slot(reader, reader.ask(), most)
        self.waiting_bytes += most
        self._slot_of[reader] = number
        return SlotToFetch(number, topic_id, reader.partition, reader.fetch_offset, most, reader.leader_epoch)

    def drop(self, reader: PartitionReader) -> None:
        number = self._slot_of.pop(reader, None)
        if number is not None:
            self.waiting_bytes -= self._slots.pop(number).max_bytes
            self._dropped.append(number)

    def give_up(self) -> list[PartitionReader]:
        slots, self._slots = self._slots, {}
        self._slot_of = {}
        self._dropped = []
        self._session = 0
        self.waiting_bytes = 0
        return [slot.reader for slot in slots.values() if slot.reader.answered(slot.number)]

    def _answered(self, session: int, max_bytes: int, response: Response, body: memoryview) -> None:
        if session == self._session:
            if isinstance(response, SessionFetchResponse):
                self._take(response, body)
            elif isinstance(response, ErrorResponse):
                self.refused = response.error == "overloaded"
                self._fail(error_from_code(response.error, response.detail))
            else:
                self._fail(self._nonsense())
        self._over(max_bytes)

    def _take(self, response: SessionFetchResponse, body: memoryview) -> None:
        pieces = split_body(body, [answer.length for answer in response.slots])
        for answer, piece in zip(response.slots, pieces, strict=True):
            slot = self._slots.get(answer.slot)
            if slot is None:
                continue  # it was dropped
            reader = slot.reader
            if answer.error or answer.length:
                del self._slots[answer.slot], self._slot_of[reader]
                self.waiting_bytes -= slot.max_bytes
                if reader.answered(slot.number):
                    self._calls.on_answer(reader, answer, piece)
            elif reader.asked == slot.number:
                self._calls.on_answer(reader, answer, piece)

    def _lost(self, session: int, max_bytes: int, error: RaftlogError) -> None:
        if session == self._session:
            self._fail(error)
        self._over(max_bytes, error)

    def _fail(self, error: RaftlogError) -> None:
        for reader in self.give_up():
            self._calls.on_failed(reader, error)


class Channels:
    """The channels of a fetcher, one per connection.

    Belongs to one event loop.
    """

    def __init__(self, settings: ConsumerSettings, calls: Calls, now: Callable[[], float]) -> None:
        """`now` returns the loop's time."""
        self._settings = settings
        self._calls = calls
        self._now = now
        self._channels: dict[Connection, Channel] = {}
        self._no_session_before: dict[Connection, float] = {}

    def __len__(self) -> int:
        return len(self._channels)

    def all(self) -> list[Channel]:
        """Return the channels in use."""
        return list(self._channels.values())

    def to(self, connection: Connection) -> Channel:
        """Return the channel to use for this connection now.

        Requests on its former channel are still answered.
        """
        channel = self._channels.get(connection)
        now = self._now()
        if channel is not None and channel.refused:
            self._no_session_before[connection] = now + SESSION_AGAIN
            channel = None
        elif isinstance(channel, PlainChannel) and self._no_session_before.get(connection, math.inf) <= now:
            channel = None
        if channel is None:
            plain = isinstance(connection, ApiConnection) or self._no_session_before.get(connection, -math.inf) > now
            kind = PlainChannel if plain else SessionChannel
            channel = self._channels[connection] = kind(connection, self._settings, self._calls)
        return channel

    def leave_lost(self) -> list[PartitionReader]:
        """Drop the channels of unusable connections; return the readers to request elsewhere."""
        readers = []
        for connection in [connection for connection in self._channels if not connection.usable]:
            readers += self._channels.pop(connection).give_up()
            self._no_session_before.pop(connection, None)
        return readers
