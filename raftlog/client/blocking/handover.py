"""The queue between the threads that send records and the loop that takes them (`producer.py`).

A call to another thread costs fifty times what sending a record does, so records are not handed over one by one: they
are put into a queue, and one wake-up of the loop takes all that are there. The queue is bounded in bytes.
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
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError

from .loop_thread import LoopThread

RECORD_BYTES = 200
"""What a queued record costs beside its key and value."""
QUEUE_BYTES = 4 * MIB
"""Records that the loop has not taken yet."""
LOOK_SECONDS = 1.0
"""Who waits for room looks so often whether the loop is still there."""
RECORDS_A_TURN = 1000
REFUSED_KEPT = 1000

Result = TypeVar("Result")


class SentRecord:
    """One record on its way. Its result may be asked for by any thread, at any time, or never."""

    __slots__ = ("_delivery", "_error", "_observed", "_owner")

    def __init__(self, owner: Handover) -> None:
        self._owner = owner
        self._delivery: RecordDelivery | None = None
        self._error: Exception | None = None
        self._observed = False

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Where the record is, once it is acknowledged. Raises the error that ended it (as awaiting
        `Producer.send_and_wait` does), or `TimeoutError` after `timeout` seconds; it is on its way all the same."""
        return self._owner.thread.run(self._acknowledged, timeout)

    async def _acknowledged(self) -> RecordMetadata:
        if self._delivery is None and self._error is None:
            await self._owner.reached()
        if self._delivery is None:
            self._observed = True
            assert self._error is not None
            raise self._error
        return await self._delivery


class _Queued(NamedTuple):
    """Arguments of one `send`, and whose."""

    target: AsyncProducer | AsyncTransaction
    sent: SentRecord
    bytes: int
    arguments: tuple[Any, ...]


class Handover:
    """The queue between the callers' threads and the loop's."""

    def __init__(self, thread: LoopThread) -> None:
        self.thread = thread
        self._room = threading.Condition()
        self._queue: deque[_Queued | asyncio.Event] = deque()
        self._queued_bytes = 0
        self._closed = False
        # The loop's own:
        self._taking: asyncio.Task[None] | None = None
        self._refused: deque[SentRecord] = deque(maxlen=REFUSED_KEPT)
        """Records since the last flush that the producer did not take; the newest, where they are many."""

    # --- Callers' threads ---

    def put(self, arguments: tuple[Any, ...], size: int, target: AsyncProducer | AsyncTransaction) -> SentRecord:
        """Arguments for the target's `send_and_wait`; waits for room. Raises `RetriableError` (`shutting_down`)."""
        sent = SentRecord(self)
        with self._room:
            # A thread that has died tells nobody that it did.
            while self._queued_bytes >= QUEUE_BYTES and not (self._closed or self.thread.closed):
                self._room.wait(LOOK_SECONDS)
            if self._closed or self.thread.closed:
                raise RetriableError("shutting_down", "the producer is closed")
            first = not self._queue
            self._queue.append(_Queued(target, sent, size, arguments))
            self._queued_bytes += size
            if first:
                self.thread.call_soon(self._wake)
        return sent

    def after_queued(self, call: Callable[[], Coroutine[Any, Any, Result]], timeout: float | None = None) -> Result:
        """What `call` returns, awaited on the thread when all that was queued before has been taken. Raises as
        `LoopThread.run`."""

        async def later() -> Result:
            await self.reached()
            return await call()

        return self.thread.run(later, timeout)

    def close(self) -> None:
        """Whoever waits for room is told."""
        with self._room:
            self._closed = True
            self._room.notify_all()

    # --- The loop's thread ---

    def _wake(self) -> None:
        if self._taking is None or self._taking.done():
            self._taking = asyncio.get_running_loop().create_task(self._take())

    async def _take(self) -> None:
        """All that is there. The queue is let go of before each part is worked on, so callers go on meanwhile."""
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
                    await asyncio.sleep(0)  # let answers in
                await self._send(item)

    async def _send(self, queued: _Queued) -> None:
        sent = queued.sent
        try:
            while True:
                delivery = queued.target.send_and_wait(*queued.arguments)
                if isinstance(delivery, RecordDelivery):
                    sent._delivery = delivery
                    return
                delivery.close()  # the buffer is full: it would be sent when awaited, after those that come behind it
                await queued.target.drain()
        except Exception as error:  # noqa: BLE001  whatever it is, it is this record's; those behind it go on
            sent._error = error
            if isinstance(queued.target, AsyncProducer):
                self._refused.append(sent)
            else:
                broken = InvalidRequest("invalid_request", f"a record was not taken: {error!r}")
                queued.target.doom(error if isinstance(error, RaftlogError) else broken)

    async def reached(self) -> None:
        """Returns when all that was queued before this call has been taken."""
        here = asyncio.Event()
        with self._room:
            self._queue.append(here)
        self._wake()
        await here.wait()

    def raise_refused(self) -> None:
        """The error of a record that the producer did not take, unless somebody has seen it."""
        refused, self._refused = self._refused, deque(maxlen=REFUSED_KEPT)
        for sent in refused:
            if not sent._observed and sent._error is not None:
                sent._observed = True
                raise sent._error
