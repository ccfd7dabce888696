"""The sending calls that a blocking producer and its transactions share.

Records are sent in the order of the calls; every other call waits until the records queued before it were taken.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from typing import Any, TypeVar

from raftlog.client.producing.sending import CurrentTrace, HeadersArgument, RecordSending
from raftlog.trace_context import with_trace

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
        headers = self._traced(headers)
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

    def _traced(self, headers: HeadersArgument | None) -> HeadersArgument | None:
        """Return the headers with the trace of this thread's work: that of the object's thread is another."""
        current: CurrentTrace | None = self._wrapped.trace_context
        trace = None if current is None else current()
        if trace is None:
            return headers
        if headers is None:
            return trace.headers
        try:
            return with_trace(list(headers.items() if isinstance(headers, Mapping) else headers), trace)
        except (TypeError, ValueError):
            return headers  # no headers at all: the result says so

    def _run(self, call: Callable[[], Coroutine[Any, Any, Result]], timeout: float | None = None) -> Result:
        return self._handover.after_queued(call, timeout)
