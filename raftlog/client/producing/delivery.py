"""The outcome of sent records: one `DeliveryFuture` per batch, shared by all of its records.

A future for each record costs more than everything else that a `send` does, so `Producer.send` returns the future of
the batch that contains the record. Any number of tasks may await it: each waits on its own future, so a task that gives
up (a deadline, a cancellation) does not affect the others or the batch.

An error that is never read is not lost: `Producer.flush` and `Producer.close` raise it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeAlias

import msgspec

from raftlog.errors import RaftlogError


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """An acknowledged batch.

    Its records have the offsets `base_offset` to `base_offset + count - 1`, in the order in which they were sent.
    """

    topic: str
    partition: int
    base_offset: int
    """-1 with acks=0, where no broker answers."""
    count: int
    """Number of records in the batch."""
    timestamp_ms: int
    """Milliseconds since 1970.

    The leader's clock if the topic has `message.timestamp.type=LogAppendTime`, else the timestamp of records that were
    sent without one.
    """
    log_append_time: bool = False
    """Whether `timestamp_ms` is the leader's."""

    @property
    def end_offset(self) -> int:
        """The offset after the batch's last record."""
        return self.base_offset + self.count


class RecordMetadata(msgspec.Struct, frozen=True, gc=False):
    """One acknowledged record."""

    topic: str
    partition: int
    offset: int
    """-1 with acks=0."""
    timestamp_ms: int


DeliveryCallback: TypeAlias = "Callable[[DeliveryFuture], None]"


class DeliveryFuture:
    """The future delivery of one batch.

    `await` it for a `Delivery`, or for the `RaftlogError` that ended it.
    """

    __slots__ = ("_callbacks", "_error", "_result", "_waiters", "observed")

    def __init__(self) -> None:
        self._result: Delivery | None = None
        self._error: RaftlogError | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self.observed = False
        """Whether its error, if any, was read."""
        self._callbacks: list[DeliveryCallback] = []

    def __repr__(self) -> str:
        state = "pending" if not self.done() else f"failed: {self._error}" if self._error else str(self._result)
        return f"<DeliveryFuture {state}>"

    def done(self) -> bool:
        """Whether it is decided."""
        return self._result is not None or self._error is not None

    def result(self) -> Delivery:
        """Return the delivery. Raises its error, or `asyncio.InvalidStateError` while it is undecided."""
        if self._result is not None:
            return self._result
        if self._error is not None:
            self.observed = True
            raise self._error
        raise asyncio.InvalidStateError("the batch is not delivered yet")

    def exception(self) -> RaftlogError | None:
        """Return the error that ended it, if any."""
        self.observed = self.observed or self._error is not None
        return self._error

    def add_done_callback(self, callback: DeliveryCallback) -> None:
        """Call `callback(self)` when it is decided, or at once if it is already.

        Once decided, an exception in a callback goes to the loop's exception handler.
        """
        if self.done():
            callback(self)
        else:
            self._callbacks.append(callback)

    def __await__(self) -> Generator[asyncio.Future[None], None, Delivery]:
        if self._result is None and self._error is None:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            yield from waiter
        return self.result()

    async def settled(self) -> None:
        """Wait until it is decided, without reading its error."""
        if not self.done():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def deliver(self, result: Delivery) -> None:
        """Decide it as acknowledged. For the producer only."""
        self._result = result
        self._tell()

    def fail(self, error: RaftlogError) -> None:
        """Decide it as failed. For the producer only."""
        self._error = error
        self._tell()

    def follow(self, index: int, batch: DeliveryFuture) -> None:
        """Decide a single record's delivery as its batch was decided. For the producer only."""
        if batch._error is not None:
            self.fail(batch._error)
            return
        done = batch.result()
        offset = done.base_offset + index if done.base_offset >= 0 else -1
        self.deliver(msgspec.structs.replace(done, base_offset=offset, count=1))

    def _tell(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback(self)
            except Exception as error:  # noqa: BLE001  the program's: other deliveries are unaffected
                context = {"message": "a delivery's callback failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class RecordDelivery(Coroutine[Any, Any, RecordMetadata]):
    """The future delivery of one record.

    `await` it for its `RecordMetadata`, or for the error that ended it. It is a coroutine, so that a task can be made
    of it, but it need not be awaited: the record is sent in any case.
    """

    __slots__ = ("_delivery", "_index", "_steps", "_timestamp_ms")

    def __init__(self, delivery: DeliveryFuture, index: int, timestamp_ms: int | None) -> None:
        """`index`: the record's place in its batch; `timestamp_ms`: None if it was sent without one."""
        self._delivery = delivery
        self._index = index
        self._timestamp_ms = timestamp_ms
        self._steps: Generator[asyncio.Future[None], None, RecordMetadata] | None = None

    def __repr__(self) -> str:
        return f"<RecordDelivery {self._index} of {self._delivery!r}>"

    def __await__(self) -> Generator[asyncio.Future[None], None, RecordMetadata]:
        done = yield from self._delivery.__await__()
        offset = done.base_offset + self._index if done.base_offset >= 0 else -1
        timestamp_ms = self._timestamp_ms
        if timestamp_ms is None or done.log_append_time:
            timestamp_ms = done.timestamp_ms
        return RecordMetadata(done.topic, done.partition, offset, timestamp_ms)

    def send(self, value: Any) -> Any:
        if self._steps is None:
            self._steps = self.__await__()
        return self._steps.send(value)

    def throw(self, typ: Any, val: Any = None, tb: Any = None) -> Any:
        if self._steps is None:
            self._steps = self.__await__()
        return self._steps.throw(typ) if val is None else self._steps.throw(val)

    def close(self) -> None:
        if self._steps is not None:
            self._steps.close()
