"""The blocking `Producer`: an asyncio producer (`raftlog/client/producer.py`) on a thread of its own.

Any thread may send. Records are passed on through a queue that is bounded in bytes (`handover.py`); the asyncio
producer behind it has its own bound, and `send` waits while both are full. The result of `send` does no work until it
is read.
"""

from __future__ import annotations

import logging
import warnings
import weakref
from typing import Any

from raftlog.client.producer import Producer as AsyncProducer
from raftlog.client.times import Seconds, seconds_of

from .handover import Handover
from .loop_thread import LoopThread
from .sending import Sending
from .transaction import Transaction

logger = logging.getLogger("raftlog.client")


class Producer(Sending, of=AsyncProducer, names=("prepare", "buffered_bytes", "metrics")):
    """Sends records to topics, from any thread.

    `close` it, or use it with `with`.
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(AsyncProducer(*args, **keywords), Handover(LoopThread(self, "producer")))
        # At the end of the program too; before the thread's own finalizer, because the last one made is called first.
        self._unclosed = weakref.finalize(self, _warn_if_unsent, self._wrapped, self._handover)

    def transaction(self, **how: Any) -> Transaction:
        return Transaction(self._do(lambda: self._wrapped.transaction(**how)), self._handover)

    def flush(self, timeout: Seconds | None = None) -> None:
        """Send everything now, and return once every record sent before this call is acknowledged.

        Raises the error of the first record or batch that failed since the last flush and whose result was not read, or
        `TimeoutError` after `timeout` seconds.
        """

        async def flush() -> None:
            await self._wrapped.flush()
            self._handover.raise_refused()

        self._run(flush, None if timeout is None else seconds_of(timeout))

    def close(self, *, flush: bool = True) -> None:
        """Flush, then close all connections. Closing twice is allowed.

        Raises as `flush` does; the producer is closed nevertheless. Without `flush`, the outcome of unacknowledged
        records is unknown.
        """
        self._unclosed.detach()
        try:
            if flush and not self._thread.closed:
                self.flush()
        finally:
            self._handover.close()
            self._end(lambda: self._wrapped.close(flush=False))

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.close(flush=kind is None)


def _warn_if_unsent(wrapped: AsyncProducer, handover: Handover) -> None:
    """Report the records that are lost with a producer that was not closed."""
    lost = handover.queued_bytes + wrapped.buffered_bytes
    if lost and handover.thread.belongs_to_this_process:
        told = f"a producer was not closed, and {lost} bytes of records were not acknowledged"
        logger.warning("%s: use `with`, or `close()` it", told)
        warnings.warn(told, ResourceWarning, stacklevel=2)
    wrapped.lose_quietly()
