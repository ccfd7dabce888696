"""One timer for all who wait for what was decided elsewhere."""

from __future__ import annotations

import asyncio

import pytest

from http_api.web.patience import Patience
from raftlog.errors import RetriableError


async def test_what_was_decided_is_told() -> None:
    patience, decided = Patience(20.0), asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(patience.wait(decided))
    await asyncio.sleep(0)
    decided.set_result(7)
    assert await waiting == 7
    assert await patience.wait(decided) == 7
    patience.close()


async def test_what_is_overdue_ends_and_what_came_later_goes_on() -> None:
    loop = asyncio.get_running_loop()
    patience, lost, late = Patience(0.2), loop.create_future(), loop.create_future()
    first = asyncio.create_task(patience.wait(lost))
    await asyncio.sleep(0.1)
    second = asyncio.create_task(patience.wait(late))
    with pytest.raises(RetriableError) as refused:
        await first
    assert refused.value.code == "request_timed_out"
    assert not second.done()
    late.set_result(1)
    assert await second == 1
    patience.close()


async def test_the_second_to_come_is_overdue_too() -> None:
    loop = asyncio.get_running_loop()
    patience = Patience(0.05)
    waiting = [patience.wait(loop.create_future()) for _ in range(3)]
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(answer) for answer in answers] == [RetriableError] * 3
    patience.close()


async def test_who_leaves_takes_nothing_else_along() -> None:
    loop = asyncio.get_running_loop()
    patience, gone, there = Patience(0.05), loop.create_future(), loop.create_future()
    leaving, staying = asyncio.create_task(patience.wait(gone)), asyncio.create_task(patience.wait(there))
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(RetriableError):
        await staying
    assert gone.cancelled()
    patience.close()
