"""The blocking `GroupConsumer`: an asyncio one (`raftlog/client/groups/consumer.py`) on a thread of its own, read by
any one thread.

Callbacks belong to whoever calls `poll`: they are run by its thread while the consumer's waits for them, so they may
call the consumer (to commit what is about to be given up) as they may everywhere else.

Iterating asks for many records at a time. A record that the program has not been given yet is not processed: commits
stop before the first of them, and so does the end.
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
    """A member of a consumer group. One thread at a time; `close` it, or use it with `with`."""

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
        """Fetched by iterating, not given to the program yet."""
        self._in_hand: ConsumerRecord | None = None
        """What iterating gave last: processed once the next one is asked for."""
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        """For the thread that waits: callbacks, and None at the end."""
        self._decided: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        """What commits without waiting have to tell, whenever the program calls next."""
        self._thread = LoopThread(self, "consumer")

    # --- Reading ---

    def poll(self, max_records: int = 500, timeout: float = 1.0) -> list[ConsumerRecord]:
        """As `raftlog`'s `GroupConsumer.poll`: what was handed out before counts as processed."""
        self._in_hand = None
        if self._ahead:
            self._wrapped.shows_life()
            return [self._ahead.popleft() for _ in range(min(max_records, len(self._ahead)))]
        return self._run(lambda: self._wrapped.poll(max_records, timeout))

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Every record, for ever."""
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
        """What it reads now."""

        async def ask() -> list[GroupPartition]:
            return self._wrapped.assignment

        return self._thread.run(ask)

    @property
    def positions(self) -> dict[GroupPartition, int]:
        """What it reads → the offset of the next record to be handed out."""

        async def ask() -> dict[GroupPartition, int]:
            return self._wrapped.positions

        return self._handed_out(self._thread.run(ask))

    @property
    def lag(self) -> dict[GroupPartition, int]:
        """How far its positions are behind what may be read, where a leader has told that."""

        async def ask() -> tuple[dict[GroupPartition, int], dict[GroupPartition, int]]:
            return self._wrapped.lag, self._wrapped.positions

        lag, positions = self._thread.run(ask)
        before = self._handed_out(positions)
        return {partition: behind + positions[partition] - before[partition] for partition, behind in lag.items()}

    committed = blocking(AsyncGroupConsumer.committed)

    def commit(self, offsets: Mapping[GroupPartition, int] | None = None, *, timeout: float = 15.0) -> None:
        """As `raftlog`'s `GroupConsumer.commit`."""
        wanted = self.positions if offsets is None else offsets
        self._thread.run(lambda: self._wrapped.commit(wanted, timeout=timeout))
        self._tell_decided()

    def commit_soon(
        self,
        offsets: Mapping[GroupPartition, int] | None = None,
        done: Callable[[RaftlogError | None], None] | None = None,
    ) -> None:
        """The same without waiting. `done` gets None or the error from a later `poll`, `commit` or `close`, in the
        thread that calls that. Raises `RetriableError` (`overloaded`) while very many are under way."""
        wanted = self.positions if offsets is None else dict(offsets)
        told = None if done is None else (lambda error: self._decided.put(lambda: done(error)))

        async def begin() -> None:
            self._wrapped.commit_soon(wanted, told)

        self._thread.run(begin)

    def consumed(self) -> ConsumedOffsets:
        """As `raftlog`'s `GroupConsumer.consumed`: what the program was given, and its group has not committed."""

        async def ask() -> tuple[ConsumedOffsets, dict[GroupPartition, int]]:
            return self._wrapped.consumed(), self._wrapped.positions

        offsets, positions = self._thread.run(ask)
        ends = {(one.topic_id, one.partition): end for one, end in self._handed_out(positions).items()}
        ranges = (replace(one, end=ends.get((one.topic_id, one.partition), one.end)) for one in offsets.ranges)
        return replace(offsets, ranges=tuple(one for one in ranges if one.end != one.start))

    def consumed_is_committed(self, offsets: ConsumedOffsets) -> None:
        """That is committed now. From any thread; of a consumer that is closed it is of no interest."""
        with contextlib.suppress(RetriableError):
            self._thread.call_soon(lambda: self._wrapped.consumed_is_committed(offsets))

    def seek_to_committed(self) -> None:
        """As `raftlog`'s `GroupConsumer.seek_to_committed`."""
        self._thread.run(self._wrapped.seek_to_committed)
        self._ahead.clear()
        self._in_hand = None

    def seek(self, topic: str, partition: int, start: Start) -> None:
        """As `raftlog`'s `GroupConsumer.seek`."""
        self._thread.run(lambda: self._wrapped.seek(topic, partition, start))
        self._ahead = deque(r for r in self._ahead if (r.topic, r.partition) != (topic, partition))

    def pause(self, partitions: Iterable[GroupPartition]) -> None:
        """As `raftlog`'s `GroupConsumer.pause`."""
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
        """Go on with these where they were paused; the others are none of its business."""
        wanted = list(partitions)

        async def go_on() -> None:
            self._wrapped.resume(wanted)

        self._thread.run(go_on)

    @property
    def paused(self) -> list[GroupPartition]:
        """What it reads and holds back."""

        async def ask() -> list[GroupPartition]:
            return self._wrapped.paused

        return self._thread.run(ask)

    # --- The end ---

    def close(self, *, processed: bool = True) -> None:
        """Commit (where commits are automatic), leave the group, let go of all connections. Closing twice is fine.

        Without `processed` what was given last (by iterating: one record; else by the last `poll`) is not committed,
        so whoever follows reads it again. `with` closes so when an exception ends it."""
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
        """The same, before what is here ahead of the program."""
        first = self._first_ahead()
        return {one: first.get((one.topic, one.partition), position) for one, position in positions.items()}

    def _run(self, call: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """As `LoopThread.run`, and callbacks are run here meanwhile."""
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
                except Exception as error:  # noqa: BLE001  the user's: raised from `poll`, as where it is awaited
                    done.set_exception(error)

            self._calls.put(run)
            await asyncio.wrap_future(done)

        return call
