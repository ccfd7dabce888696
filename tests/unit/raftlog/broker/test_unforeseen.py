"""What comes out of a callback or a task that nobody waits for is heard."""

from __future__ import annotations

import asyncio
import gc

import pytest

from raftlog.broker.unforeseen import REMEMBERED_SECONDS, UnforeseenErrors
from tests.support.replication_cluster import QuietLogger


class Bug(Exception):
    """Nobody catches this one."""


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


async def test_a_callback_and_a_task_that_die_are_told_of(clock: HandClock, logger: QuietLogger) -> None:
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
