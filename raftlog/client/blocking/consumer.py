"""The blocking `Consumer`: an asyncio consumer (`raftlog/client/consuming/consumer.py`) on a thread of its own.

Any one thread at a time may read it. Iteration fetches many records at a time, because a call to another thread costs
fifty times as much as a record. Records that were fetched but not yet given to the program do not count as read:
`positions` and `lag` count from the first of them, and a call that reads in another way goes back to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from ssl import SSLContext
from types import TracebackType
from typing import Any

from raftlog.client.consuming.consumer import Consumer as AsyncConsumer
from raftlog.client.consuming.reader import READ_COMMITTED, Start
from raftlog.client.consuming.records import ConsumedBatch, ConsumerRecord
from raftlog.client.consuming.settings import DEFAULT_PREFETCH_BYTES
from raftlog.model import EARLIEST

from .group_consumer import GroupConsumer
from .loop_thread import LoopThread, blocking

RECORDS_AHEAD = 500
WAIT_SECONDS = 1.0


class Consumer:
    """Reads one topic, from one thread at a time.

    `close` it, or use it with `with`.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        topic: str,
        partitions: Sequence[int] | None = None,
        start: Start | Mapping[int, Start] = EARLIEST,
        *,
        prefetch_bytes: int = DEFAULT_PREFETCH_BYTES,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        on_out_of_range: str = "error",
        isolation: str = READ_COMMITTED,
        topic_id: str = "",
        ssl: SSLContext | None = None,
    ) -> None:
        """The settings are those of `raftlog.Consumer`. Raises `InvalidRequest`."""
        self._wrapped = AsyncConsumer(
            bootstrap,
            topic,
            partitions,
            start,
            prefetch_bytes=prefetch_bytes,
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            on_out_of_range=on_out_of_range,
            isolation=isolation,
            topic_id=topic_id,
            ssl=ssl,
        )
        self._ahead: deque[ConsumerRecord] = deque()
        self._thread = LoopThread(self, "consumer")

    @staticmethod
    def subscribe(
        bootstrap: str | Sequence[str], group: str, topics: Sequence[str] = (), **settings: Any
    ) -> GroupConsumer:
        """Return a blocking `GroupConsumer`, as `raftlog.Consumer.subscribe` returns an asyncio one."""
        return GroupConsumer(bootstrap, group, topics, **settings)

    # --- Reading ---

    start = blocking(AsyncConsumer.start)

    def poll(self, max_records: int = 500, timeout: float = 1.0) -> list[ConsumerRecord]:
        """Return up to `max_records` records as soon as there are any, or none after `timeout` seconds.

        Raises as `raftlog.Consumer.poll` does.
        """
        if self._ahead:
            return [self._ahead.popleft() for _ in range(min(max_records, len(self._ahead)))]
        return self._thread.run(lambda: self._wrapped.poll(max_records, timeout))

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Iterate over the records without end."""
        return self

    def __next__(self) -> ConsumerRecord:
        while not self._ahead:
            self._ahead.extend(self._thread.run(lambda: self._wrapped.poll(RECORDS_AHEAD, WAIT_SECONDS)))
        return self._ahead.popleft()

    def next_batch(self, timeout: float = 1.0) -> ConsumedBatch | None:
        """Return the next batch of any partition, or None after `timeout` seconds. Raises as `poll` does."""
        self._go_back()
        return self._thread.run(lambda: self._wrapped.next_batch(timeout))

    def batches(self) -> Iterator[ConsumedBatch]:
        """Iterate over the batches without end."""
        while True:
            batch = self.next_batch(WAIT_SECONDS)
            if batch is not None:
                yield batch

    # --- Positions ---

    @property
    def positions(self) -> dict[int, int]:
        """Offset of the next record to hand out, by partition, where it is known already."""

        async def ask() -> dict[int, int]:
            return self._wrapped.positions

        return {**self._thread.run(ask), **self._first_ahead()}

    @property
    def high_watermarks(self) -> dict[int, int]:
        """High watermark by partition, from the leader's last answer."""

        async def ask() -> dict[int, int]:
            return self._wrapped.high_watermarks

        return self._thread.run(ask)

    @property
    def end_offsets(self) -> dict[int, int]:
        """End of the readable records by partition, from the leader's last answer."""

        async def ask() -> dict[int, int]:
            return self._wrapped.end_offsets

        return self._thread.run(ask)

    @property
    def lag(self) -> dict[int, int]:
        """Number of offsets between the position and the readable end, by partition."""

        async def ask() -> tuple[dict[int, int], dict[int, int]]:
            return self._wrapped.lag, self._wrapped.end_offsets

        lag, ends = self._thread.run(ask)
        return {**lag, **{partition: ends[partition] - offset for partition, offset in self._first_ahead().items()}}

    def seek(self, partition: int, start: Start) -> None:
        """Continue reading `partition` at `start`. Raises `InvalidRequest`."""
        self._thread.run(lambda: self._wrapped.seek(partition, start))
        self._ahead = deque(record for record in self._ahead if record.partition != partition)

    # --- The end ---

    def close(self) -> None:
        """Close all connections. Closing twice is allowed."""
        if not self._thread.closed:
            try:
                self._thread.run(self._wrapped.close)
            finally:
                self._thread.stop()

    def __enter__(self) -> Consumer:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # --- Inside ---

    def _first_ahead(self) -> dict[int, int]:
        first: dict[int, int] = {}
        for record in self._ahead:
            first.setdefault(record.partition, record.offset)
        return first

    def _go_back(self) -> None:
        """Seek the partitions back to the first records that were not given to the program."""
        for partition, offset in self._first_ahead().items():
            self.seek(partition, offset)
