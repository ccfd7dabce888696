"""Small pieces of work: alone they start at once, together they share a flight, and none waits long for another."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from http_api.web import gathering
from http_api.web.gathering import Gathering
from raftlog.errors import RaftlogError, RetriableError
from tests.support.http.api_client import eventually


class Carrier:
    """Records its flights; each lasts until `land`."""

    def __init__(self) -> None:
        self.flights: list[tuple[list[int], asyncio.Future[None]]] = []

    async def carry(self, items: list[int]) -> Sequence[int | RaftlogError]:
        landing = asyncio.get_running_loop().create_future()
        self.flights.append((items, landing))
        await landing
        return [RetriableError("overloaded", "odd") if item % 2 else 10 * item for item in items]

    async def departed(self, count: int) -> list[list[int]]:
        await eventually(lambda: len(self.flights) >= count)
        return [items for items, _ in self.flights]

    def land(self, number: int, error: Exception | None = None) -> None:
        landing = self.flights[number][1]
        landing.set_result(None) if error is None else landing.set_exception(error)


def gathering_of(most: int) -> Gathering[int, int]:
    return Gathering(most, asyncio.get_running_loop().create_task)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "PATIENCE_S", 600.0)


@pytest.mark.usefixtures("patient")
async def test_what_comes_during_a_flight_shares_the_next_and_each_gets_its_own_outcome() -> None:
    work, carrier = gathering_of(3), Carrier()
    asked = [asyncio.create_task(work.join("kind", item, carrier.carry)) for item in (2, 4, 5, 6, 8)]
    assert await carrier.departed(1) == [[2]]
    carrier.land(0)
    assert await carrier.departed(2) == [[2], [4, 5, 6]], "at most three"
    assert await asked[0] == 20
    carrier.land(1)
    assert await carrier.departed(3) == [[2], [4, 5, 6], [8]]
    carrier.land(2)
    assert [await asked[number] for number in (1, 3, 4)] == [40, 60, 80]
    with pytest.raises(RetriableError):
        await asked[2]
    again = asyncio.create_task(work.join("kind", 10, carrier.carry))
    assert (await carrier.departed(4))[3] == [10], "an idle kind departs at once"
    carrier.land(3)
    assert await again == 100


@pytest.mark.usefixtures("patient")
async def test_kinds_do_not_wait_for_each_other() -> None:
    work, carrier = gathering_of(3), Carrier()
    asked = [asyncio.create_task(work.join(kind, 2, carrier.carry)) for kind in ("a", "b")]
    assert await carrier.departed(2) == [[2], [2]]
    carrier.land(1)
    assert await asked[1] == 20
    carrier.land(0)
    assert await asked[0] == 20


async def test_a_flight_that_takes_long_does_not_delay_the_others() -> None:
    work, carrier = gathering_of(2), Carrier()
    asked = [asyncio.create_task(work.join("kind", item, carrier.carry)) for item in (2, 4, 6, 8)]
    assert await carrier.departed(3) == [[2], [4, 6], [8]]
    carrier.land(2)
    assert await asked[3] == 80
    carrier.land(0)
    carrier.land(1)
    assert [await one for one in asked[:3]] == [20, 40, 60]


@pytest.mark.usefixtures("patient")
async def test_a_caller_that_leaves_takes_its_item_back_or_leaves_it_to_the_flight() -> None:
    work, carrier = gathering_of(3), Carrier()
    asked = [asyncio.create_task(work.join("kind", item, carrier.carry)) for item in (2, 4, 6)]
    await carrier.departed(1)
    asked[0].cancel()
    asked[1].cancel()
    await asyncio.wait(asked[:2])
    carrier.land(0)
    assert await carrier.departed(2) == [[2], [6]]
    carrier.land(1)
    assert await asked[2] == 60


@pytest.mark.usefixtures("patient")
async def test_a_flight_that_breaks_tells_all_aboard_and_the_next_departs() -> None:
    work, carrier = gathering_of(3), Carrier()
    asked = [asyncio.create_task(work.join("kind", item, carrier.carry)) for item in (2, 4, 6)]
    await carrier.departed(1)
    carrier.land(0, ValueError("broken"))
    with pytest.raises(ValueError, match="broken"):
        await asked[0]
    assert await carrier.departed(2) == [[2], [4, 6]]
    carrier.land(1)
    assert [await one for one in asked[1:]] == [40, 60]


@pytest.mark.usefixtures("patient")
async def test_closing_cancels_what_waits() -> None:
    work, carrier = gathering_of(3), Carrier()
    asked = [asyncio.create_task(work.join("kind", item, carrier.carry)) for item in (2, 4)]
    await carrier.departed(1)
    work.close()
    await asyncio.wait(asked[1:], timeout=5)
    assert asked[1].cancelled()
    carrier.land(0)
    assert await asked[0] == 20


async def test_a_flight_that_cannot_begin_tells_all_aboard() -> None:
    def full(flight: Coroutine[Any, Any, None]) -> None:
        flight.close()
        raise RetriableError("overloaded", "full")

    work = Gathering[int, int](3, full)
    with pytest.raises(RetriableError, match="full"):
        await work.join("kind", 2, Carrier().carry)
