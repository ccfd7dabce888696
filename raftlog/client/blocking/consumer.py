"""The blocking `Consumer`: an asyncio consumer (`raftlog/client/consumer.py`) on a thread of its own.

Any one thread at a time may read it. Iteration fetches many records at a time, because a call to another thread costs
fifty times as much as a record. Records that were fetched but not yet given to the program do not count as read:
`positions` and `lag` count from the first of them, and every call but `poll` goes back to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, TypeVar

from raftlog.client.consumer import Consumer as AsyncConsumer
from raftlog.client.consuming.records import ConsumerRecord
from raftlog.client.times import Seconds

from .group_consumer import RECORDS_AHEAD, WAIT_SECONDS, GroupConsumer
from .loop_thread import LoopThread
from .twin import Twin

Result = TypeVar("Result")


class Consumer(Twin, of=AsyncConsumer, without=("go_on_at",)):
    """Reads one topic, from one thread at a time.

    `close` it, or use it with `with`.
    """

    subscribe: Final = GroupConsumer
    """`Consumer.subscribe(bootstrap, group, topics)` shares the topics with the other members of its group, and
    continues at the group's committed offsets."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(AsyncConsumer(*args, **keywords), LoopThread(self, "consumer"))
        self._ahead: deque[ConsumerRecord] = deque()

    def poll(self, max_records: int = 500, timeout: Seconds = 1.0) -> list[ConsumerRecord]:
        if self._ahead:
            return [self._ahead.popleft() for _ in range(min(max_records, len(self._ahead)))]
        return self._run(lambda: self._wrapped.poll(max_records, timeout))

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Iterate over the records without end."""
        return self

    def __next__(self) -> ConsumerRecord:
        while not self._ahead:
            self._ahead.extend(self.poll(RECORDS_AHEAD, WAIT_SECONDS))
        return self._ahead.popleft()

    @property
    def positions(self) -> dict[int, int]:
        """Offset of the next record to hand out, by partition, if it is known already."""
        return {**self._look(lambda: self._wrapped.positions), **self._first_ahead()}

    @property
    def lag(self) -> dict[int, int]:
        """Number of offsets between the position and the readable end, by partition."""
        lag, ends = self._look(lambda: (self._wrapped.lag, self._wrapped.end_offsets))
        return {**lag, **{partition: ends[partition] - offset for partition, offset in self._first_ahead().items()}}

    @property
    def caught_up(self) -> bool:
        """True if every partition's readable end is known and the position is there."""
        return not self._ahead and self._look(lambda: self._wrapped.caught_up)

    # --- Inside ---

    def _run(self, call: Callable[[], Coroutine[Any, Any, Result]], timeout: float | None = None) -> Result:
        self._go_back()
        return super()._run(call, timeout)

    def _do(self, call: Callable[[], Result]) -> Result:
        self._go_back()
        return super()._do(call)

    def _go_back(self) -> None:
        """Go back to the first records that were not given to the program."""
        if self._ahead:
            first = self._first_ahead()
            self._look(lambda: [self._wrapped.go_on_at(*place) for place in first.items()])
            self._ahead.clear()

    def _first_ahead(self) -> dict[int, int]:
        """Return the offset of the first record that was not given to the program, by partition."""
        return {record.partition: record.offset for record in reversed(self._ahead)}
