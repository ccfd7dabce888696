"""The waiting requests of a driver, and the acknowledgements that wait for the disk."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from partitions.replica.effects import Acknowledge, RequestId
from raftlog.errors import RaftlogError, RetriableError
from raftlog.model import Offset


class Produced(msgspec.Struct, frozen=True):
    """The answer to a produced batch. With `acks=0` it only says that the batch was received; nothing is certain."""

    base_offset: Offset
    log_append_time_ms: int
    """-1 if the topic keeps the producer's timestamps."""
    log_start_offset: Offset


class Deleted(msgspec.Struct, frozen=True):
    """The answer to `delete-records`: the first remaining offset, on every disk that counts."""

    log_start_offset: Offset


ProduceDone: TypeAlias = Callable[[Produced | RaftlogError], None]
DeleteDone: TypeAlias = Callable[[Deleted | RaftlogError], None]
Answer: TypeAlias = Produced | Deleted | RaftlogError
RequestDone: TypeAlias = Callable[[Any], None]
"""A request's callback; it gets the answer type of its request: a produce never gets `Deleted`."""


class ProduceRequests:
    """Waiting requests. Each gets exactly one answer, and gets it between two events of the driver.

    So a callback may produce again at once.
    """

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        """`failed` gets a callback's exception; the other callbacks are still called."""
        self._failed = failed
        self._waiting: dict[RequestId, tuple[RequestDone, float]] = {}
        self._deadlines: list[tuple[float, RequestId]] = []
        self._last = 0
        self.due: list[tuple[RequestDone, Answer]] = []
        """The answers for `deliver`."""

    def add(self, done: RequestDone, deadline: float) -> RequestId:
        """Add a request; `deadline` is in monotonic seconds."""
        self._last += 1
        request = RequestId(self._last)
        self._waiting[request] = (done, deadline)
        heapq.heappush(self._deadlines, (deadline, request))
        return request

    def answer(self, request: RequestId, answer: Answer) -> None:
        """Set the answer, unless the request has one already (its deadline passed)."""
        entry = self._waiting.pop(request, None)
        if entry is not None:
            self.due.append((entry[0], answer))

    def deadline_of(self, request: RequestId) -> float:
        """Return the request's deadline, or -inf if it has been answered."""
        return self._waiting[request][1] if request in self._waiting else -math.inf

    def is_waiting(self, request: RequestId) -> bool:
        """Whether the request has no answer yet."""
        return request in self._waiting

    def expire(self, now: float) -> None:
        """Answer the requests whose deadline has passed: their outcome is unknown here."""
        while self._deadlines and (self._deadlines[0][0] <= now or self._deadlines[0][1] not in self._waiting):
            _, request = heapq.heappop(self._deadlines)
            self.answer(
                request, RetriableError("request_timed_out", "the request was not replicated within its timeout")
            )

    def fail_all(self, error: RaftlogError) -> None:
        """Answer all waiting requests with this error."""
        for request in list(self._waiting):
            self.answer(request, error)

    def deliver(self) -> None:
        """Call the callbacks of all answered requests."""
        while self.due:
            due, self.due = self.due, []
            for done, answer in due:
                try:
                    done(answer)
                except Exception as error:  # noqa: BLE001  the owner logs it; the other callbacks are still called
                    self._failed(error)

    def __len__(self) -> int:
        return len(self._waiting)


class AwaitingStable:
    """Acknowledgements that travel inside a write, until that write is stable."""

    def __init__(self) -> None:
        self._heap: list[tuple[Offset, int, Sequence[Acknowledge]]] = []
        self._arrivals = 0

    def add(self, end_offset: Offset, after: Sequence[Acknowledge]) -> None:
        self._arrivals += 1
        heapq.heappush(self._heap, (end_offset, self._arrivals, after))

    def release(self, stable_end_offset: Offset) -> list[Acknowledge]:
        """Return the acknowledgements whose write is stable."""
        due: list[Acknowledge] = []
        while self._heap and self._heap[0][0] <= stable_end_offset:
            due += heapq.heappop(self._heap)[2]
        return due

    def abandon(self) -> list[Acknowledge]:
        """Remove and return all others, in the order of the log."""
        rest = [acknowledge for _, _, after in sorted(self._heap, key=lambda entry: entry[:2]) for acknowledge in after]
        self._heap.clear()
        return rest
