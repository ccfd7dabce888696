"""The messages of one replication link, handled in order, a large one in several turns of the loop.

One message may concern thousands of partitions: after a restart, a failover, or when many are written at once. It is
handled some entries at a time (`stepwise`), and later messages wait. A small message with none before it is handled at
once.

The queue is bounded: a follower has two pushes in flight and merges its acknowledgements, so a peer that sends more
than `WAITING_MAX` messages ahead breaks the protocol.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from raftlog.errors import RemoteProtocolError
from raftlog.ports import Scheduler

WAITING_MAX = 4_096
"""Bound on the messages that wait for one before them."""


class MessageTurns:
    """The messages of one link."""

    def __init__(
        self,
        scheduler: Scheduler,
        begin: Callable[[memoryview], Iterator[None] | None],
        failed: Callable[[RemoteProtocolError], None],
    ) -> None:
        """`begin` handles a message, or returns the remaining steps.

        It may raise `RemoteProtocolError`, which is passed to `failed`: then, and after `close`, nothing else is
        handled.
        """
        self._scheduler = scheduler
        self._begin = begin
        self._failed = failed
        self._waiting: deque[memoryview] = deque()
        self._work: Iterator[None] | None = None
        """The rest of the present message."""
        self._handling = False
        """Whether a caller further up the stack is handling a message."""
        self._closed = False

    def on_message(self, message: memoryview) -> None:
        """Handle the next message, or queue it."""
        if self._closed:
            return
        self._waiting.append(message)
        if self._work is None and not self._handling:
            self._go_on()
        elif len(self._waiting) > WAITING_MAX:
            self._fail(RemoteProtocolError(f"more than {WAITING_MAX} messages ahead of what was answered"))

    def close(self) -> None:
        """Drop all queued messages: the link is gone."""
        self._closed = True
        self._waiting.clear()
        self._work = None

    def _go_on(self) -> None:
        self._handling = True
        try:
            while not self._closed and (self._work is not None or self._waiting):
                work = self._work = self._work or self._begin(self._waiting.popleft())
                if work is not None and next(work, "done") != "done":
                    if not self._closed:
                        self._scheduler.call_soon(self._go_on)
                    return
                self._work = None
        except RemoteProtocolError as error:
            self._fail(error)
        except BaseException:
            # The loop reports the error; the messages that follow must not wait permanently.
            self._work = None
            if self._waiting:
                self._scheduler.call_soon(self._go_on)
            raise
        finally:
            self._handling = False

    def _fail(self, error: RemoteProtocolError) -> None:
        if not self._closed:
            self.close()
            self._failed(error)
