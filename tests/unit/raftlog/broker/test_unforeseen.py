"""Exceptions of callbacks and tasks without a waiter are reported."""

from __future__ import annotations

import asyncio
import gc

import pytest

from raftlog.broker.unforeseen import REMEMBERED_SECONDS, UnforeseenErrors
from tests.support.partitions.replication_cluster import QuietLogger


class Bug(Exception):
    """An exception that is not caught by its name."""


class HandClock:
    """Time passes when a test says so."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.now * 1000)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def logger() -> QuietLogger:
    return QuietLogger()


async def test_exceptions_of_callbacks_and_tasks_are_reported(clock: HandClock, logger: QuietLogger) -> None:
    errors = UnforeseenErrors(clock, logger)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(errors.hear)
    assert errors.problems() == []

    def dies() -> None:
        raise Bug("a callback's")

    async def dies_too() -> None:
        raise Bug("a task's")

    loop.call_soon(dies)
    task = loop.create_task(dies_too())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert task.done()
    del task
    gc.collect()
    assert [event for event, _ in logger.lines] == ["unforeseen", "unforeseen"]
    assert {str(fields["exc_info"]) for _, fields in logger.lines} == {"a callback's", "a task's"}
    (line,) = errors.problems()
    assert line.startswith("2 unexpected errors") and "Bug: a task's" in line
    clock.now += REMEMBERED_SECONDS + 1
    assert errors.problems() == []
