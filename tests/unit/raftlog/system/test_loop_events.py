"""Deferred work of an event is done at its end: in order, once, in slices, whatever fails."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable

import pytest

from raftlog.system import loop_events
from raftlog.system.loop_events import LoopEvents, events_of
from raftlog.system.runtime import LoopScheduler, ThreadWorker


@pytest.fixture
def seen() -> list[str]:
    return []


def noting(seen: list[str], name: str) -> Callable[[], None]:
    return lambda: seen.append(name)


async def test_calls_are_made_at_the_end_of_the_event_and_final_ones_after_them(seen: list[str]) -> None:
    events = events_of(asyncio.get_running_loop())
    events.begin()
    events.at_end(lambda given: seen.append(f"last {given is events}"))
    events.call_soon(noting(seen, "one"))
    events.begin()  # a part of it
    events.call_soon(noting(seen, "two"))
    events.end()
    assert seen == []
    events.end()
    assert seen == ["one", "two", "last True"]
    await asyncio.sleep(0)
    assert len(seen) == 3


async def test_outside_an_event_the_next_turn_is_one(seen: list[str]) -> None:
    events = events_of(asyncio.get_running_loop())
    events.call_soon(noting(seen, "one"))
    events.at_end(lambda _: seen.append("last"))
    assert seen == []
    await asyncio.sleep(0)
    assert seen == ["one", "last"]


async def test_nothing_overtakes_work_deferred_outside_an_event(seen: list[str]) -> None:
    events = events_of(asyncio.get_running_loop())
    events.call_soon(noting(seen, "outside"))
    events.begin()
    events.call_soon(noting(seen, "inside"))
    events.end()
    assert seen == ["outside", "inside"]
    await asyncio.sleep(0)
    assert seen == ["outside", "inside"]


async def test_work_deferred_at_the_end_waits_for_the_next_turn(seen: list[str]) -> None:
    """Work in slices stays in slices: other callbacks have their turn in between."""
    loop = asyncio.get_running_loop()
    events = events_of(loop)

    def slice_of(left: int) -> None:
        seen.append(f"slice {left}")
        if left:
            events.call_soon(lambda: slice_of(left - 1))
            loop.call_soon(noting(seen, "others"))

    events.begin()
    events.call_soon(lambda: slice_of(2))
    events.end()
    assert seen == ["slice 2"]
    for _ in range(4):
        await asyncio.sleep(0)
    assert seen == ["slice 2", "others", "slice 1", "others", "slice 0"]


async def test_calls_that_take_long_leave_the_rest_to_the_next_turn(
    seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    events, passed, clock = events_of(loop), 0.0, loop.time
    monkeypatch.setattr(loop, "time", lambda: clock() + passed)

    def long() -> None:
        nonlocal passed
        passed += 0.001
        seen.append("long")

    events.begin()
    for _ in range(20):
        events.call_soon(long)
    events.end()
    assert 1 < len(seen) < 20 * loop_events.SOON_SECONDS / 0.001
    while len(seen) < 20:
        before = len(seen)
        await asyncio.sleep(0)
        assert len(seen) > before


async def test_a_failing_call_is_reported_and_does_not_affect_the_others(seen: list[str]) -> None:
    loop = asyncio.get_running_loop()
    reported: list[object] = []
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
    events, error = events_of(loop), ValueError("a bug")

    def fail(*_: object) -> None:
        raise error

    events.begin()
    events.call_soon(fail)
    events.call_soon(noting(seen, "one"))
    events.at_end(fail)
    events.at_end(lambda _: seen.append("last"))
    events.end()
    assert (seen, reported) == (["one", "last"], [error, error])


async def test_an_interrupt_ends_the_program_and_leaves_the_rest_to_the_loop(seen: list[str]) -> None:
    events = events_of(asyncio.get_running_loop())

    def interrupt() -> None:
        raise KeyboardInterrupt

    events.begin()
    events.call_soon(interrupt)
    events.call_soon(noting(seen, "one"))
    with pytest.raises(KeyboardInterrupt):
        events.end()
    await asyncio.sleep(0)
    assert seen == ["one"], "and the event is over"


async def test_a_scheduler_and_a_worker_share_the_events_of_their_loop(seen: list[str]) -> None:
    """The consequences of results are processed in the turn of the loop that delivered them."""
    loop = asyncio.get_running_loop()
    scheduler, worker = LoopScheduler(loop), ThreadWorker(loop, threads=1)
    finished = asyncio.Event()

    def done(_: None, __: BaseException | None) -> None:
        loop.call_soon(noting(seen, "the next turn"))
        loop.call_soon(finished.set)
        scheduler.call_soon(noting(seen, "soon"))
        seen.append("result")

    worker.submit(lambda: None, done)
    async with asyncio.timeout(10):
        await finished.wait()
    worker.close()
    assert seen == ["result", "soon", "the next turn"]


def test_a_closed_loop_leaves_nothing_behind() -> None:
    loop = asyncio.new_event_loop()
    events = events_of(loop)
    assert isinstance(events, LoopEvents) and events_of(loop) is events
    gone = weakref.ref(loop)
    loop.close()
    del loop, events
    gc.collect()
    assert gone() is None
