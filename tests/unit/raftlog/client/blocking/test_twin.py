"""Twins: which members a blocking class has, how they read, and on which thread they run."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator
from typing import Any, Self

import pytest

import raftlog.sync
from raftlog import client
from raftlog.client.blocking.loop_thread import LoopThread
from raftlog.client.blocking.twin import Twin
from raftlog.client.transactions.transaction import Transaction

LEFT_OUT = {
    "Admin": set[str](),
    "Consumer": {"go_on_at"},
    "GroupConsumer": {"look_ahead", "iterated"},
    "Producer": {"drain", "lose_quietly", "send_when_room", "send_and_wait"},
}
"""Public members of asyncio classes that their twins do not have: parts of the library, and ways to wait for room."""


class Counter:
    """An asyncio object that counts."""

    def __init__(self, start: int = 0, *, step: int = 1) -> None:
        self._count = start
        self.step = step
        self.entered = self.closed = False

    @property
    def count(self) -> int:
        """Number of counts so far."""
        asyncio.get_running_loop()
        return self._count

    def reset(self, count: int = 0) -> str:
        """Begin again."""
        self._count = count
        return threading.current_thread().name

    async def add(self, times: int = 1) -> int:
        """Count on, as in `await counter.add()`."""
        if times < 0:
            raise ValueError("it only counts on")
        await asyncio.sleep(0)
        self._count += times * self.step
        return self._count

    async def numbers(self, end: int) -> AsyncIterator[int]:
        """Iterate up to `end`."""
        while self._count < end:
            yield await self.add()

    async def twice(self, times: int, *, note: str = "") -> int:
        """Count twice."""
        return await self.add(2 * times)

    async def hidden(self) -> None:
        """Do something inside the library."""

    async def close(self) -> None:
        """Close it."""
        self.closed = True

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def __aenter__(self) -> Self:
        if self.step == 0:
            raise ValueError("it does not count")
        self.entered = True
        return self


class BlockingCounter(Twin, of=Counter, without=("hidden",)):
    """A counter for any thread."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        self.counter = Counter(*args, **keywords)
        self.thread = LoopThread(self, "counter")
        super().__init__(self.counter, self.thread)

    def twice(self, *args: Any, more: int = 0, **named: Any) -> int:
        return self._run(lambda: self._wrapped.twice(*args, **named)) + more


def test_members_run_on_the_thread_of_the_object() -> None:
    with BlockingCounter(5, step=2) as counter:
        assert counter.counter.entered and counter.count == 5
        assert counter.add() == 7 and counter.add(times=2) == 11
        assert counter.reset() == "raftlog-counter" and counter.count == 0
        assert list(counter.numbers(6)) == [2, 4, 6]
        assert counter.twice(1, more=90) == 100
        with pytest.raises(ValueError, match="only counts on"):
            counter.add(-1)
    assert counter.counter.closed
    counter.close()


def test_an_object_that_cannot_be_entered_is_closed() -> None:
    counter = BlockingCounter(step=0)
    with pytest.raises(ValueError, match="does not count"), counter:
        pass
    assert counter.thread.closed and counter.counter.closed


def test_a_programs_own_subclass_changes_nothing() -> None:
    class Mine(BlockingCounter):
        def add(self, times: int = 1) -> int:
            return super().add(10 * times)

    with Mine() as mine:
        assert mine.add() == 10


def test_signatures_and_docstrings_are_those_of_the_asyncio_class() -> None:
    assert str(inspect.signature(BlockingCounter)) == str(inspect.signature(Counter))
    assert str(inspect.signature(BlockingCounter.add)) == "(self, times: 'int' = 1) -> 'int'"
    assert str(inspect.signature(BlockingCounter.twice)) == (
        "(self, times: 'int', *, note: 'str' = '', more: 'int' = 0) -> 'int'"
    )
    assert BlockingCounter.add.__doc__ == "Count on, as in `counter.add()`."
    assert BlockingCounter.twice.__doc__ == "Count twice."
    assert inspect.getattr_static(BlockingCounter, "count").__doc__ == "Number of counts so far."


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_blocking_class_has_every_public_member_of_its_asyncio_class(name: str) -> None:
    blocking, asynchronous = getattr(raftlog.sync, name), getattr(client, name)
    missing = {one for one in dir(asynchronous) if not one.startswith("_") and not hasattr(blocking, one)}
    assert missing == LEFT_OUT[name]
    for one in set(dir(asynchronous)) - missing:
        member = getattr(asynchronous, one)
        if not one.startswith("_") and inspect.isfunction(member):
            own = getattr(blocking, one)
            assert own.__doc__ and not inspect.iscoroutinefunction(own)
            assert set(inspect.signature(member).parameters) <= set(inspect.signature(own).parameters)


def test_a_transaction_has_what_programs_call() -> None:
    names = {"state", "key", "send", "send_many", "send_offsets", "set_position", "commit", "abort", "prepare"}
    assert {one for one in dir(raftlog.sync.Transaction) if not one.startswith("_")} == names
    assert all(hasattr(Transaction, name) for name in names)
