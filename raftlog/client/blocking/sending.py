"""The sending calls that a blocking producer and its transactions share.

Records are sent in the order of the calls; every other call waits until the records queued before it were taken.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any, TypeVar

from raftlog.client.producing.sending import HeadersArgument, RecordSending

from .handover import RECORD_BYTES, Handover, SentRecord
from .twin import Twin

Result = TypeVar("Result")

SIZED = (bytes, bytearray)


class Sending(Twin, of=RecordSending, names=()):
    """Base of blocking classes that send records."""

    def __init__(self, wrapped: Any, handover: Handover) -> None:
        super().__init__(wrapped, handover.thread)
        self._handover = handover

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | datetime | None = None,
        headers: HeadersArgument | None = None,
    ) -> SentRecord:
        """Queue one record, as the asyncio `send` does, but wait for room if the buffer is full.

        Raises `ClientClosed`. Any other error of the record is raised by the result of the returned
        object, or else by `flush`; it breaks a transaction.
        """
        # A value or key of a wrong type has no size; the result of this call says so.
        size = (
            RECORD_BYTES + (len(value) if isinstance(value, SIZED) else 0) + (len(key) if isinstance(key, SIZED) else 0)
        )
        return self._handover.put(self._wrapped, size, (topic, value, key, partition, timestamp_ms, headers))

    def send_many(self, *columns: Any, **named: Any) -> None:
        """Queue whole columns, as the asyncio `send_many` does, and return once all are queued.

        `flush` waits for their acknowledgements.
        """

        async def send() -> None:
            await self._wrapped.send_many(*columns, **named)

        self._run(send)

    def _run(self, call: Callable[[], Coroutine[Any, Any, Result]], timeout: float | None = None) -> Result:
        return self._handover.after_queued(call, timeout)
