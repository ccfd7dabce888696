"""The blocking `GroupConsumer`: an asyncio one (`raftlog/client/groups/consumer.py`) on a thread of its own.

Any one thread at a time may read it. Callbacks run on the thread that calls `poll` while the consumer's thread waits
for them, so a callback may call the consumer, for example to commit partitions that are about to be released.

Iteration fetches many records at a time. A record that was not given to the program yet is not processed: commits,
including the last one in `close`, stop before the first of them.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import queue
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

from msgspec.structs import replace

from raftlog.client.consuming.reader import Start
from raftlog.client.consuming.records import ConsumerRecord
from raftlog.client.groups.api import GroupPartition
from raftlog.client.groups.consumer import GroupConsumer as AsyncGroupConsumer
from raftlog.client.transactions.api import ConsumedOffsets
from raftlog.errors import RaftlogError, RetriableError

from .loop_thread import LoopThread, blocking

Result = TypeVar("Result")
Callback: TypeAlias = Callable[[list[GroupPartition]], None]

RECORDS_AHEAD = 500
WAIT_SECONDS = 1.0


class GroupConsumer:
    """A member of a consumer group, for one thread at a time.

    `close` it, or use it with `with`.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        group: str,
        topics: Sequence[str] = (),
        *,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        on_lost: Callback | None = None,
        **settings: Any,
    ) -> None:
        """`settings` are those of the asyncio `GroupConsumer`. Raises `InvalidRequest`."""
        self._wrapped = AsyncGroupConsumer(
            bootstrap,
            group,
            topics,
            on_assigned=self._by_caller(on_assigned),
            on_revoked=self._by_caller(on_revoked),
            on_lost=self._by_caller(on_lost),
            **settings,
        )
        self._ahead: deque[ConsumerRecord] = deque()
        """Records fetched by iteration and not given to the program yet."""
        self._in_hand: ConsumerRecord | None = None
        """The last record that iteration returned; it counts as processed once the next one is requested."""
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        """Rebalance callbacks for the waiting thread, and None at the end of a call."""
        self._decided: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        """Completion callbacks of asynchronous commits, run on the caller's next call."""
        self._thread = LoopThread(self, "consumer")

    # --- Reading ---

    def poll(self, max_records: int = 500, timeout: float = 1.0) -> list[ConsumerRecord]:
        """Poll as `raftlog`'s `GroupConsumer.poll` does: the records of the previous call count as processed."""
        self._in_hand = None
        if self._ahead:
            self._wrapped.shows_life()
            return [self._ahead.popleft() for _ in range(min(max_records, len(self._ahead)))]
        return self._run(lambda: self._wrapped.poll(max_records, timeout))

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Iterate over the records without end."""
        return self

    def __next__(self) -> ConsumerRecord:
        self._in_hand = None
        while not self._ahead:
            self._ahead.extend(self._run(lambda: self._wrapped.poll(RECORDS_AHEAD, WAIT_SECONDS)))
        self._wrapped.shows_life()
        self._in_hand = self._ahead.popleft()
        return self._in_hand

    # --- Positions and commits ---

    @property
    def assignment(self) -> list[GroupPartition]:
        """Partitions that it reads now."""

        async def ask() -> list[GroupPartition]:
            return self._wrapped.assignment

        return self._thread.run(ask)

    @property
    def positions(self) -> dict[GroupPartition, int]:
        """Offset of the next record to hand out, by partition."""

        async def ask() -> dict[GroupPartition, int]:
            return self._wrapped.positions

        return self._handed_out(self._thread.run(ask))

    @property
    def lag(self) -> dict[GroupPartition, int]:
        """Number of offsets between the position and the readable end, by partition, where a leader has reported it."""

        async def ask() -> tuple[dict[GroupPartition, int], dict[GroupPartition, int]]:
            return self._wrapped.lag, self._wrapped.positions

        lag, positions = self._thread.run(ask)
        before = self._handed_out(positions)
        return {partition: behind + positions[partition] - before[partition] for partition, behind in lag.items()}

    committed = blocking(AsyncGroupConsumer.committed)

    def commit(self, offsets: Mapping[GroupPartition, int] | None = None, *, timeout: float = 15.0) -> None:
        """Commit as `raftlog`'s `GroupConsumer.commit` does."""
        wanted = self.positions if offsets is None else offsets
        self._thread.run(lambda: self._wrapped.commit(wanted, timeout=timeout))
        self._tell_decided()

    def commit_soon(
        self,
        offsets: Mapping[GroupPartition, int] | None = None,
        done: Callable[[RaftlogError | None], None] | None = None,
    ) -> None:
        """Commit without waiting.

        A later `poll`, `commit` or `close` calls `done` with None or the error, on its own thread. Raises
        `RetriableError` (`overloaded`) if too many commits are in flight.
        """
        wanted = self.positions if offsets is None else dict(offsets)
        told = None if done is None else (lambda error: self._decided.put(lambda: done(error)))

        async def begin() -> None:
            self._wrapped.commit_soon(wanted, told)

        self._thread.run(begin)

    def consumed(self) -> ConsumedOffsets:
        """Return the offsets of what the program was given and its group has not committed, for a transaction."""

        async def ask() -> tuple[ConsumedOffsets, dict[GroupPartition, int]]:
            return self._wrapped.consumed(), self._wrapped.positions

        offsets, positions = self._thread.run(ask)
        ends = {(one.topic_id, one.partition): end for one, end in self._handed_out(positions).items()}
        ranges = (replace(one, end=ends.get((one.topic_id, one.partition), one.end)) for one in offsets.ranges)
        return replace(offsets, ranges=tuple(one for one in ranges if one.end != one.start))

    def consumed_is_committed(self, offsets: ConsumedOffsets) -> None:
        """Note that a transaction has committed `offsets`. Thread-safe; ignored once the consumer is closed."""
        with contextlib.suppress(RetriableError):
            self._thread.call_soon(lambda: self._wrapped.consumed_is_committed(offsets))

    def seek_to_committed(self) -> None:
        """Seek as `raftlog`'s `GroupConsumer.seek_to_committed` does."""
        self._thread.run(self._wrapped.seek_to_committed)
        self._ahead.clear()
        self._in_hand = None

    def seek(self, topic: str, partition: int, start: Start) -> None:
        """Seek as `raftlog`'s `GroupConsumer.seek` does."""
        self._thread.run(lambda: self._wrapped.seek(topic, partition, start))
        self._ahead = deque(r for r in self._ahead if (r.topic, r.partition) != (topic, partition))

    def pause(self, partitions: Iterable[GroupPartition]) -> None:
        """Pause as `raftlog`'s `GroupConsumer.pause` does."""
        wanted = list(partitions)
        first = self._first_ahead()

        async def hold() -> None:
            self._wrapped.pause(wanted)
            for one in wanted:
                if (one.topic, one.partition) in first:
                    await self._wrapped.seek(one.topic, one.partition, first[one.topic, one.partition])

        self._thread.run(hold)
        names = {(one.topic, one.partition) for one in wanted}
        self._ahead = deque(r for r in self._ahead if (r.topic, r.partition) not in names)

    def resume(self, partitions: Iterable[GroupPartition]) -> None:
        """Continue with these partitions; ignore those that are not paused or not assigned."""
        wanted = list(partitions)

        async def go_on() -> None:
            self._wrapped.resume(wanted)

        self._thread.run(go_on)

    @property
    def paused(self) -> list[GroupPartition]:
        """Assigned partitions that are paused."""

        async def ask() -> list[GroupPartition]:
            return self._wrapped.paused

        return self._thread.run(ask)

    # --- The end ---

    def close(self, *, processed: bool = True) -> None:
        """Commit (with automatic commits), leave the group and close all connections. Closing twice is allowed.

        Without `processed`, the last records (one, if they came by iteration; else those of the last `poll`) are not
        committed, so the next owner reads them again. `with` closes that way if its block raises.
        """
        if self._thread.closed:
            return
        iterating, self._in_hand = self._in_hand, None
        if iterating is not None and not processed:
            self._ahead.appendleft(iterating)
        try:
            for (topic, partition), offset in self._first_ahead().items():
                self.seek(topic, partition, offset)
            self._run(lambda: self._wrapped.close(processed=processed or iterating is not None))
        finally:
            self._thread.stop()

    def __enter__(self) -> GroupConsumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(processed=kind is None)

    # --- Inside ---

    def _first_ahead(self) -> dict[tuple[str, int], int]:
        first: dict[tuple[str, int], int] = {}
        for record in self._ahead:
            first.setdefault((record.topic, record.partition), record.offset)
        return first

    def _handed_out(self, positions: dict[GroupPartition, int]) -> dict[GroupPartition, int]:
        """Return the positions, moved back to before the records that the program was not given."""
        first = self._first_ahead()
        return {one: first.get((one.topic, one.partition), position) for one, position in positions.items()}

    def _run(self, call: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Run `call` as `LoopThread.run` does, and meanwhile run callbacks on this thread."""
        calls = self._calls = queue.SimpleQueue()
        future = self._thread.submit(call)
        future.add_done_callback(lambda _: calls.put(None))
        try:
            while (callback := calls.get()) is not None:
                callback()
            self._tell_decided()
        except BaseException:
            future.cancel()
            raise
        return self._thread.result(future)

    def _tell_decided(self) -> None:
        while not self._decided.empty():
            self._decided.get()()

    def _by_caller(self, callback: Callback | None) -> Callable[[list[GroupPartition]], Any] | None:
        if callback is None:
            return None

        async def call(partitions: list[GroupPartition]) -> None:
            done: concurrent.futures.Future[None] = concurrent.futures.Future()

            def run() -> None:
                try:
                    done.set_result(callback(partitions))
                except Exception as error:  # noqa: BLE001  the program's error: `poll` raises it
                    done.set_exception(error)

            self._calls.put(run)
            await asyncio.wrap_future(done)

        return call
