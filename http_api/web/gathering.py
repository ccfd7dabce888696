"""Gathering of small pieces of work: what arrives while a piece of the same kind is in flight shares the next flight.

Work of an idle kind departs at once, so a lone request waits for nothing. Work of a busy kind departs together with
everything that has come, so its cost is shared. A flight that takes long delays the others by `PATIENCE_S` only: then
the next one departs beside it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Sequence
from typing import Any, Generic, TypeVar

from raftlog.errors import RaftlogError

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

Carry = Callable[[list[Item]], Coroutine[Any, Any, Sequence[Outcome | RaftlogError]]]
"""Does the work of all items, and returns the outcome of each."""

PATIENCE_S = 0.02


class _Line(Generic[Item, Outcome]):
    """The items of one kind that wait, in order of arrival."""

    __slots__ = ("carry", "flights", "timer", "waiting")

    def __init__(self, carry: Carry[Item, Outcome]) -> None:
        self.carry = carry
        self.waiting: deque[tuple[Item, asyncio.Future[Outcome]]] = deque()
        self.flights = 0
        self.timer: asyncio.TimerHandle | None = None
        """Lets the waiting items depart beside the flights under way."""


class Gathering(Generic[Item, Outcome]):
    """Work in progress by kind. Bounded by its callers: each waits for its own item."""

    def __init__(self, most_items: int, begin: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        """`most_items`: the maximum number in a flight. `begin` starts a flight as a task, or raises a `RaftlogError`
        if there are too many."""
        self._most = most_items
        self._begin = begin
        self._lines: dict[Hashable, _Line[Item, Outcome]] = {}

    async def join(self, kind: Hashable, item: Item, carry: Carry[Item, Outcome]) -> Outcome:
        """Return the outcome of an item, or raise its error. `carry` is the same for all of a kind.

        A caller that is cancelled takes its item back if it has not departed; otherwise the work completes.
        """
        loop = asyncio.get_running_loop()
        line = self._lines.get(kind)
        if line is None:
            line = self._lines[kind] = _Line(carry)
        future: asyncio.Future[Outcome] = loop.create_future()
        line.waiting.append((item, future))
        if not line.flights:
            self._depart(kind, line)
        elif line.timer is None:
            line.timer = loop.call_later(PATIENCE_S, self._depart, kind, line)
        return await future

    def close(self) -> None:
        """Cancel what waits; the owner of the tasks cancels what is in flight."""
        for line in self._lines.values():
            if line.timer is not None:
                line.timer.cancel()
            for _, future in line.waiting:
                future.cancel()
        self._lines.clear()

    def _depart(self, kind: Hashable, line: _Line[Item, Outcome]) -> None:
        """Let the waiting items depart."""
        if line.timer is not None:
            line.timer.cancel()
            line.timer = None
        aboard: list[tuple[Item, asyncio.Future[Outcome]]] = []
        while line.waiting and len(aboard) < self._most:
            one = line.waiting.popleft()
            if not one[1].done():  # otherwise its caller has left
                aboard.append(one)
        loop = asyncio.get_running_loop()
        if line.waiting:
            line.timer = loop.call_later(PATIENCE_S, self._depart, kind, line)
        if aboard:
            try:
                self._begin(self._fly(kind, line, aboard))
                line.flights += 1
            except RaftlogError as error:
                _land(aboard, [error] * len(aboard))
        if not line.flights and not line.waiting and self._lines.get(kind) is line:
            del self._lines[kind]

    async def _fly(
        self, kind: Hashable, line: _Line[Item, Outcome], aboard: list[tuple[Item, asyncio.Future[Outcome]]]
    ) -> None:
        try:
            outcomes: Sequence[Outcome | BaseException] = await line.carry([item for item, _ in aboard])
        except asyncio.CancelledError:
            for _, future in aboard:
                future.cancel()
            raise
        except Exception as error:  # noqa: BLE001  each caller raises it
            outcomes = [error] * len(aboard)
        finally:
            line.flights -= 1
        _land(aboard, outcomes)
        if not line.flights:
            self._depart(kind, line)


def _land(aboard: Sequence[tuple[Item, asyncio.Future[Outcome]]], outcomes: Sequence[Outcome | BaseException]) -> None:
    for (_, future), outcome in zip(aboard, outcomes, strict=True):
        if future.done():
            continue  # its caller has left
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
