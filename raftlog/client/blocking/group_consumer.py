"""The blocking `GroupConsumer`: an asyncio one (`raftlog/client/groups/consumer.py`) on a thread of its own.

Any one thread at a time may read it. Callbacks run on the thread that calls while the consumer's thread waits for them,
so a callback may call the consumer, for example to commit partitions that are about to be released.

Iteration looks many records ahead, and reports with the next call how many of them the program was given. The others
are not handed out: commits, including the last one in `close`, stop before the first of them.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import queue
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any, TypeAlias, TypeVar

from raftlog.api.groups import GroupPartition
from raftlog.api.transactions import ConsumedOffsets
from raftlog.client.consuming.records import ConsumerRecord
from raftlog.client.groups.consumer import CommitOffsets
from raftlog.client.groups.consumer import GroupConsumer as AsyncGroupConsumer
from raftlog.errors import ClientClosed, RaftlogError

from .loop_thread import LoopThread
from .twin import Twin

Result = TypeVar("Result")
Callback: TypeAlias = Callable[[list[GroupPartition]], None]

RECORDS_AHEAD = 500
WAIT_SECONDS = 1.0


class GroupConsumer(Twin, of=AsyncGroupConsumer, without=("look_ahead", "iterated")):
    """A member of a consumer group, for one thread at a time.

    `close` it, or use it with `with`.
    """

    def __init__(
        self,
        *args: Any,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        on_lost: Callback | None = None,
        **keywords: Any,
    ) -> None:
        callbacks = {"on_assigned": on_assigned, "on_revoked": on_revoked, "on_lost": on_lost}
        by_caller: dict[str, Any] = {name: self._by_caller(one) for name, one in callbacks.items() if one is not None}
        super().__init__(AsyncGroupConsumer(*args, **{**keywords, **by_caller}), LoopThread(self, "consumer"))
        self._ahead: deque[ConsumerRecord] = deque()
        """Records that iteration has not given to the program yet."""
        self._given = 0
        """Number of records that it has given since the last call to the thread."""
        self._calls: queue.SimpleQueue[object] = queue.SimpleQueue()
        """Calls for the thread that waits: rebalance callbacks, and completion callbacks of asynchronous commits.

        The future of the call that it waits for ends the waiting.
        """

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Iterate over the records without end."""
        return self

    def __next__(self) -> ConsumerRecord:
        while not self._ahead:
            self._ahead.extend(self._run(lambda: self._wrapped.look_ahead(RECORDS_AHEAD, WAIT_SECONDS)))
        self._wrapped.shows_life()
        self._given += 1
        return self._ahead.popleft()

    def commit_soon(
        self,
        offsets: CommitOffsets | None = None,
        done: Callable[[RaftlogError | None], None] | None = None,
    ) -> None:
        """Commit without waiting.

        A later call that waits for the cluster (`poll`, `commit`, `close`, ...) calls `done` with None or the error, on
        its own thread. Raises `RetriableError` (`overloaded`) if too many commits are in flight.
        """
        told = None if done is None else (lambda error: self._calls.put(partial(done, error)))
        self._do(lambda: self._wrapped.commit_soon(offsets, told))

    def consumed_is_committed(self, offsets: ConsumedOffsets) -> None:
        """Record that a transaction has committed `offsets`. Thread-safe; ignored once the consumer is closed."""
        with contextlib.suppress(ClientClosed):
            self._thread.call_soon(lambda: self._wrapped.consumed_is_committed(offsets))

    # --- Inside ---

    def _run(self, call: Callable[[], Coroutine[Any, Any, Result]], timeout: float | None = None) -> Result:
        """Run `call`, and meanwhile run callbacks on this thread."""
        given, self._given = self._given, 0
        self._ahead.clear()

        async def run() -> Result:
            self._wrapped.iterated(given)
            return await call()

        future = self._thread.submit(run)
        future.add_done_callback(self._calls.put)
        try:
            while (callback := self._calls.get()) is not future:
                if callable(callback):
                    callback()
        except BaseException:
            future.cancel()
            raise
        return self._thread.result(future, timeout)

    def _do(self, call: Callable[[], Result]) -> Result:
        result = super()._do(call)
        self._ahead.clear()
        return result

    def _look(self, look: Callable[[], Result]) -> Result:
        given, self._given = self._given, 0

        def after_given() -> Result:
            self._wrapped.iterated(given)
            return look()

        return super()._look(after_given)

    def _by_caller(self, callback: Callback) -> Callable[[list[GroupPartition]], Coroutine[Any, Any, None]]:
        async def call(partitions: list[GroupPartition]) -> None:
            done: concurrent.futures.Future[None] = concurrent.futures.Future()

            def run() -> None:
                if done.set_running_or_notify_cancel():
                    try:
                        callback(partitions)
                    except Exception as error:  # noqa: BLE001  the program's error: `poll` raises it
                        done.set_exception(error)
                    else:
                        done.set_result(None)

            self._calls.put(run)
            await asyncio.wrap_future(done)

        return call
