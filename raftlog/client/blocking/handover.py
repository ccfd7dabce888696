"""The queue between the threads that send records and the loop that takes them (`producer.py`).

A call to another thread costs fifty times as much as sending a record. So records are queued, and a single wake-up of
the loop takes all that are there. The queue is bounded in bytes.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

from raftlog.client.producer import Producer as AsyncProducer
from raftlog.client.producing.delivery import RecordDelivery, RecordMetadata
from raftlog.client.transactions.transaction import Transaction as AsyncTransaction
from raftlog.config import MIB
from raftlog.errors import ClientClosed, InvalidRequest, RaftlogError

from .loop_thread import LoopThread

RECORD_BYTES = 200
"""Memory that a queued record takes beside its key and value, in bytes."""
QUEUE_BYTES = 4 * MIB
"""Limit of records that the loop has not taken yet, in bytes."""
LOOK_SECONDS = 1.0
"""Seconds after which a sender waiting for room checks that the loop is still running."""
RECORDS_A_TURN = 1000
REFUSED_KEPT = 1000

Result = TypeVar("Result")


class SentRecord:
    """One record in flight.

    Any thread may wait for its result, at any time, or never.
    """

    __slots__ = ("_delivery", "_error", "_observed", "_taken", "_thread")

    def __init__(self, thread: LoopThread) -> None:
        self._thread = thread
        # Only the loop's thread uses these:
        self._delivery: RecordDelivery | None = None
        self._error: Exception | None = None
        self._observed = False
        self._taken: asyncio.Event | None = None
        """Set once the record was taken or refused; made by the first that waits for it."""

    def __repr__(self) -> str:
        taken = "queued" if self._delivery is None else repr(self._delivery)
        state = taken if self._error is None else f"failed: {self._error}"
        return f"<SentRecord {state}>"

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Return the record's place in the log once it is acknowledged.

        Raises the error that ended it, as awaiting `Producer.send_and_wait` does, or `TimeoutError` after `timeout`
        seconds; the record stays in flight after a timeout.
        """
        return self._thread.run(self._acknowledged, timeout)

    async def _acknowledged(self) -> RecordMetadata:
        if self._delivery is None and self._error is None:
            self._taken = self._taken or asyncio.Event()
            await self._taken.wait()
        if self._delivery is None:
            self._observed = True
            assert self._error is not None
            raise self._error
        return await self._delivery

    def _decide(self, outcome: RecordDelivery | Exception) -> None:
        """Record that the producer took or refused the record."""
        if isinstance(outcome, Exception):
            self._error = outcome
        else:
            self._delivery = outcome
        if self._taken is not None:
            self._taken.set()


class _Queued(NamedTuple):
    """The arguments of one `send`, and the record and producer or transaction that they belong to.

    Plain tuples: a `partial` for each record would keep the garbage collector busy.
    """

    sent: SentRecord
    target: AsyncProducer | AsyncTransaction
    arguments: tuple[Any, ...]


class Handover:
    """The queue between the callers' threads and the loop's thread."""

    def __init__(self, thread: LoopThread) -> None:
        self.thread = thread
        self._room = threading.Condition()
        self._queue: deque[_Queued | asyncio.Event] = deque()
        self._queued_bytes = 0
        self._closed = False
        # Only the loop's thread uses these:
        self._taking: asyncio.Task[None] | None = None
        self._refused: deque[SentRecord] = deque(maxlen=REFUSED_KEPT)
        """Records that the producer refused since the last flush: the newest `REFUSED_KEPT` of them."""

    @property
    def queued_bytes(self) -> int:
        """Bytes that the loop has not taken yet."""
        return self._queued_bytes

    # --- Callers' threads ---

    def put(self, target: AsyncProducer | AsyncTransaction, size: int, arguments: tuple[Any, ...]) -> SentRecord:
        """Queue arguments for the target's `send_and_wait`, a record of `size` bytes; wait for room.

        Raises `ClientClosed`.
        """
        sent = SentRecord(self.thread)
        with self._room:
            # A thread that died does not notify the waiters.
            while self._queued_bytes >= QUEUE_BYTES and not (self._closed or self.thread.closed):
                self._room.wait(LOOK_SECONDS)
            if self._closed or self.thread.closed:
                raise ClientClosed("the producer is closed: create a new one")
            first = not self._queue
            self._queue.append(_Queued(sent, target, arguments))
            self._queued_bytes += size
            if first:
                self.thread.call_soon(self._wake)
        return sent

    def after_queued(self, call: Callable[[], Coroutine[Any, Any, Result]], timeout: float | None = None) -> Result:
        """Run `call` on the thread once everything queued before has been taken, and return its result.

        Raises as `LoopThread.run` does.
        """
        return self.thread.run(lambda: self.in_turn(call), timeout)

    async def in_turn(self, call: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Do the same, for a caller on the thread."""
        if not self._closed:
            await self._reached()
        return await call()

    def close(self) -> None:
        """Close the queue, and wake the threads that wait for room."""
        with self._room:
            self._closed = True
            self._room.notify_all()

    # --- The loop's thread ---

    def _wake(self) -> None:
        if self._taking is None or self._taking.done():
            self._taking = asyncio.get_running_loop().create_task(self._take())

    async def _take(self) -> None:
        """Take everything that is queued; the lock is not held while records are sent, so callers can continue."""
        while True:
            with self._room:
                taken, self._queue = self._queue, deque()
                self._queued_bytes = 0
                self._room.notify_all()
            if not taken:
                return
            for number, item in enumerate(taken):
                if isinstance(item, asyncio.Event):
                    item.set()
                    continue
                if number % RECORDS_A_TURN == RECORDS_A_TURN - 1:
                    await asyncio.sleep(0)  # process answers in between
                await self._send(item)

    async def _send(self, queued: _Queued) -> None:
        sent = queued.sent
        try:
            while True:
                delivery = queued.target.send_and_wait(*queued.arguments)
                if isinstance(delivery, RecordDelivery):
                    sent._decide(delivery)
                    return
                delivery.close()  # the buffer is full: awaiting it would send it after the records queued behind it
                await queued.target.drain()
        except Exception as error:  # noqa: BLE001  any error is this record's alone; the records behind it continue
            sent._decide(error)
            if isinstance(queued.target, AsyncProducer):
                self._refused.append(sent)
            else:
                broken = InvalidRequest("invalid_request", f"a record could not be sent: {error!r}")
                queued.target.doom(error if isinstance(error, RaftlogError) else broken)

    async def _reached(self) -> None:
        """Wait until everything queued before this call has been taken."""
        here = asyncio.Event()
        with self._room:
            self._queue.append(here)
        self._wake()
        await here.wait()

    def raise_refused(self) -> None:
        """Raise the error of a refused record, unless its result was already read."""
        refused, self._refused = self._refused, deque(maxlen=REFUSED_KEPT)
        for sent in refused:
            if not sent._observed and sent._error is not None:
                sent._observed = True
                raise sent._error
