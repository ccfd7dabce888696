"""Writes that outlive their requests: their deadline, and the answer when it passes."""

from __future__ import annotations

import asyncio
import time

import pytest

from http_api.web.context import ApiContext
from http_api.web.hosts import HostPolicy
from http_api.web.limits import Limits
from raftlog.errors import RetriableError
from tests.support.client.fake_broker import FakeBroker


@pytest.fixture
def context() -> ApiContext:
    return ApiContext(FakeBroker(), HostPolicy.of((), ()), Limits())


async def test_a_write_that_is_done_at_its_deadline_is_told_of_as_done(context: ApiContext) -> None:
    """The loop stalled, so one turn sees the decision and the deadline: the decision is the answer."""

    async def write(answer: int) -> int:
        await asyncio.sleep(0)
        time.sleep(0.05)  # noqa: ASYNC251  it is the loop that is to be held
        if answer < 0:
            raise RetriableError("overloaded", "not now")
        return answer

    assert await context.finish(write(7), 0.02) == 7
    with pytest.raises(RetriableError, match="not now"):
        await context.finish(write(-1), 0.02)


async def test_a_write_that_is_never_done_is_given_up(context: ApiContext) -> None:
    async def write() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RetriableError) as late:
        await context.finish(write(), 0.01)
    assert late.value.code == "request_timed_out"
    await context.close()


async def test_a_bug_in_a_write_whose_client_has_left_is_heard(context: ApiContext) -> None:
    heard: list[BaseException | None] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: heard.append(told.get("exception")))
    go_on, broken = asyncio.Event(), ZeroDivisionError("a bug")

    async def write(error: Exception) -> None:
        await go_on.wait()
        raise error

    for error in (broken, RetriableError("overloaded", "nobody needs to know")):
        request = asyncio.ensure_future(context.finish(write(error), 10.0))
        await asyncio.sleep(0)
        request.cancel()
        await asyncio.wait([request])
    go_on.set()
    for _ in range(3):
        await asyncio.sleep(0)
    await context.close()
    assert heard == [broken]
