"""The client of `positions`: a transaction moves a named position and writes a record of the move.

Half of the workers have a transactional id, so that the client after a dead one fences its open transaction; the others
use producer ids from blocks. The outcome of a transaction is the state that it reports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

from raftlog.client import Admin, Consumer, Producer, TransactionState
from raftlog.errors import RaftlogError, RetriableError

from .log import ANSWER_SECONDS, encoded
from .messages import CertainlyNot, Told
from .process import ClientSettings

NOWHERE = -1
"""The position of a name that does not exist yet."""
POLL_SECONDS = 0.2


class PositionsClient:
    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        (self._topic,) = settings.options["topics"]
        self._prefix = f"{settings.options['tag']}-"
        self._admin = Admin(list(settings.bootstrap))
        self._producer: Producer | None = None

    async def invoke(self, f: str, value: Any, hint: Mapping[str, Any]) -> Told:
        match f:
            case "cas":
                return await self._move(*value)
            case "read":
                return Told("ok", [value[0], await self._read(value[0])])
            case "records":
                return Told("ok", await self._records())
        raise ValueError(f"positions has no operation {f}")

    async def close(self) -> None:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._admin.close)
            if self._producer is not None:
                stack.push_async_callback(self._producer.close, flush=False)

    async def _read(self, name: str) -> int | None:
        try:
            return await self._admin.position(self._prefix + name)
        except RaftlogError as error:
            raise CertainlyNot(str(error)) from None

    async def _move(self, name: str, move: list[int | None], number: int) -> Told:
        came_from, to = move
        assert to is not None
        transaction = self._its_producer.transaction(timeout=self._settings.timeout / 2)
        error = ""
        try:
            async with transaction:
                transaction.send(self._topic, encoded(number))
                transaction.set_position(self._prefix + name, NOWHERE if came_from is None else came_from, to)
        except RaftlogError as failed:
            error = str(failed)
        value = [name, move, number]
        match transaction.state:
            case TransactionState.COMMITTED:
                return Told("ok", value, error or None)
            case TransactionState.NEW | TransactionState.ABORTED:
                return Told("fail", value, error)
            case _:
                return Told("info", value, error)

    async def _records(self) -> list[int]:
        """Return every committed record, up to the ends as they were when the last partition reported its own."""
        found: list[int] = []
        count = self._settings.options["topics"][self._topic]
        try:
            async with Consumer(list(self._settings.bootstrap), self._topic, max_wait_ms=100) as consumer:
                ends = [(await self._admin.offsets(self._topic, number)).latest for number in range(count)]
                while any(consumer.positions.get(number, -1) < end for number, end in enumerate(ends)):
                    records = await consumer.poll(2000, timeout=POLL_SECONDS)
                    found += [int(record.value or b"-1") for record in records]
                    await asyncio.sleep(0)
        except RetriableError as error:
            raise CertainlyNot(str(error)) from None
        return found

    @property
    def _its_producer(self) -> Producer:
        if self._producer is None:
            settings = self._settings
            name = f"worker-{settings.worker}-{settings.options['tag']}" if settings.worker % 2 else None
            patience = max(settings.timeout - ANSWER_SECONDS, settings.timeout / 2)
            self._producer = Producer(
                list(settings.bootstrap),
                linger_ms=1,
                delivery_timeout_ms=patience * 1000,
                transactional_id=name,
                transaction_timeout_ms=int(settings.timeout * 1000),
            )
        return self._producer
