"""The messages of one replication link, handled in order, a large one in several turns of the loop.

One message may concern thousands of partitions: after a restart, a failover, or when many are written at once. It is
handled some entries at a time (`raftlog/slices.py`), and later messages wait. A small message with none before it is
handled at once.

The queue is bounded: a follower has two pushes in flight and merges its acknowledgements, so a peer that sends more
than `WAITING_MAX` messages ahead breaks the protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from raftlog.errors import RemoteProtocolError
from raftlog.model import BrokerId
from raftlog.ports import Scheduler
from raftlog.slices import WorkQueue

PeerFault: TypeAlias = Callable[[BrokerId, RemoteProtocolError], None]
"""Called with a peer whose link is dropped, and its fault; the peer is -1 if it did not say who it is."""

WAITING_MAX = 4_096
"""Bound on the messages that wait for one before them."""


class MessageQueue:
    """The messages of one link."""

    def __init__(
        self,
        scheduler: Scheduler,
        handle: Callable[[memoryview], Iterator[None]],
        failed: Callable[[RemoteProtocolError], None],
    ) -> None:
        """`handle` returns the steps of a message.

        They may raise `RemoteProtocolError`, which is passed to `failed`: then, and after `close`, nothing else is
        handled.
        """
        self._handle = handle
        self._failed = failed
        self._works = WorkQueue(scheduler)

    def on_message(self, message: memoryview) -> None:
        """Handle the next message, or queue it."""
        self._works.add(lambda: self._steps(message))
        if len(self._works) > WAITING_MAX:
            self._fail(RemoteProtocolError(f"more than {WAITING_MAX} messages ahead of what was answered"))

    def close(self) -> None:
        """Drop all queued messages: the link is gone."""
        self._works.close()

    def _steps(self, message: memoryview) -> Iterator[None]:
        try:
            yield from self._handle(message)
        except RemoteProtocolError as error:
            self._fail(error)

    def _fail(self, error: RemoteProtocolError) -> None:
        if not self._works.closed:
            self.close()
            self._failed(error)
