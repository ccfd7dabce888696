"""The blocking `Producer`: an asyncio producer (`raftlog/client/producer.py`) on a thread of its own.

Any thread may send. Records are passed on through a queue that is bounded in bytes (`handover.py`); the asyncio
producer behind it has its own bound, and `send` waits while both are full. The result of `send` does no work until it
is read.
"""

from __future__ import annotations

from typing import Any

from raftlog.client.producer import Producer as AsyncProducer

from .handover import Handover
from .loop_thread import LoopThread
from .sending import Sending
from .transaction import Transaction


class Producer(Sending, of=AsyncProducer, names=("prepare", "buffered_bytes")):
    """Sends records to topics, from any thread.

    `close` it, or use it with `with`.
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(AsyncProducer(*args, **keywords), Handover(LoopThread(self, "producer")))

    def transaction(self, **how: Any) -> Transaction:
        return Transaction(self._do(lambda: self._wrapped.transaction(**how)), self._handover)

    def flush(self, timeout: float | None = None) -> None:
        """Send everything now, and return once every record sent before this call is acknowledged.

        Raises the error of the first record or batch that failed since the last flush and whose result was not read, or
        `TimeoutError` after `timeout` seconds.
        """

        async def flush() -> None:
            await self._wrapped.flush()
            self._handover.raise_refused()

        self._run(flush, timeout)

    def close(self, *, flush: bool = True) -> None:
        """Flush, then close all connections. Closing twice is allowed.

        Raises as `flush` does; the producer is closed nevertheless. Without `flush`, the outcome of unacknowledged
        records is unknown.
        """
        try:
            if flush and not self._thread.closed:
                self.flush()
        finally:
            self._handover.close()
            self._end(lambda: self._wrapped.close(flush=False))

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.close(flush=kind is None)
