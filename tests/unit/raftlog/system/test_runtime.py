"""The scheduler and worker on a real loop and real threads."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from raftlog.system.clock import SystemClock
from raftlog.system.runtime import LoopScheduler, ThreadWorker
from tests.support.partitions.manual import ManualClock


async def test_calls_due_at_once_happen_in_order() -> None:
    scheduler = LoopScheduler(asyncio.get_running_loop())
    seen: list[int] = []
    finished = asyncio.Event()
    for number in range(5):
        scheduler.call_soon(lambda number=number: seen.append(number))  # type: ignore[misc]
    cancelled = scheduler.call_later(0.0, lambda: seen.append(99))
    cancelled.cancel()
    cancelled.cancel()
    scheduler.call_later(0.001, finished.set)
    async with asyncio.timeout(5):
        await finished.wait()
    assert seen == [0, 1, 2, 3, 4]


async def test_timers_of_one_instant_fire_in_the_order_of_their_creation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a machine that has been up for years, where nanoseconds are lost in the clock's resolution."""
    loop = asyncio.get_running_loop()
    scheduler = LoopScheduler(loop)
    due: list[float] = []
    monkeypatch.setattr(loop, "time", lambda: 1e8)
    monkeypatch.setattr(loop, "call_at", lambda when, _: due.append(when))
    for _ in range(5):
        scheduler.call_later(0.5, lambda: None)
    assert due == sorted(set(due)) and len(due) == 5


async def test_results_are_delivered_on_the_loop_once_each() -> None:
    worker = ThreadWorker(asyncio.get_running_loop(), threads=2)
    mine = threading.get_ident()
    results: list[tuple[int | None, str, bool]] = []
    finished = asyncio.Event()

    def work(number: int) -> int:
        assert threading.get_ident() != mine
        if number % 3 == 0:
            raise ValueError(str(number))
        return number

    def done(result: int | None, error: BaseException | None) -> None:
        results.append((result, str(error), threading.get_ident() == mine))
        if len(results) == 100:
            finished.set()

    for number in range(100):
        worker.submit(lambda number=number: work(number), done)  # type: ignore[misc]
    async with asyncio.timeout(10):
        await finished.wait()
    worker.close()
    expected = [(None, str(n), True) if n % 3 == 0 else (n, "None", True) for n in range(100)]
    assert sorted(results, key=str) == sorted(expected, key=str)


async def test_a_callback_that_raises_does_not_affect_the_others() -> None:
    loop = asyncio.get_running_loop()
    reported: list[object] = []
    loop.set_exception_handler(lambda _, context: reported.append(context.get("exception")))
    worker = ThreadWorker(loop, threads=1)
    seen: list[int] = []
    finished = asyncio.Event()

    def done(result: int | None, error: BaseException | None) -> None:
        assert result is not None
        seen.append(result)
        if result == 9:
            finished.set()
        if result % 2 == 0:
            raise RuntimeError("a bug in a callback")

    for number in range(10):
        worker.submit(lambda number=number: number, done)  # type: ignore[misc]
    async with asyncio.timeout(10):
        await finished.wait()
    worker.close()
    assert seen == list(range(10))
    assert len(reported) == 5


async def test_many_results_at_once_give_the_loop_turns_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a thousand logs were synced together: by the loop's clock each takes a millisecond here."""
    loop = asyncio.get_running_loop()
    worker = ThreadWorker(loop, threads=1)
    seen: list[str] = []
    finished = asyncio.Event()
    passed = 0.0
    clock = loop.time
    monkeypatch.setattr(loop, "time", lambda: clock() + passed)

    def done(result: int | None, error: BaseException | None) -> None:
        nonlocal passed
        passed += 0.001
        seen.append("result")
        if seen.count("result") == 30:
            finished.set()

    def others() -> None:
        seen.append("others")
        if not finished.is_set():
            loop.call_soon(others)

    for _ in range(30):
        worker.submit(lambda: 0, done)
    last = threading.Event()
    worker.submit(last.set, lambda result, error: None)
    assert last.wait(10), "all thirty are finished before the loop takes any"
    loop.call_soon(others)
    async with asyncio.timeout(10):
        await finished.wait()
    runs = " ".join(seen).split("others")
    assert max(run.count("result") for run in runs) <= 6
    assert seen.count("result") == 30
    worker.close()


async def test_close_finishes_what_was_submitted() -> None:
    worker = ThreadWorker(asyncio.get_running_loop(), threads=1)
    ran: list[int] = []
    for number in range(20):
        worker.submit(lambda number=number: ran.append(number), lambda _, __: None)  # type: ignore[misc]
    worker.close()
    worker.close()
    assert ran == list(range(20))


def test_the_manual_clock_moves_only_by_hand() -> None:
    clock = ManualClock(monotonic=5.0, wall_ms=1_000)
    clock.advance(1.5)
    assert (clock.monotonic(), clock.wall_ms()) == (6.5, 2_500)
    clock.jump_wall(-2_000)
    assert (clock.monotonic(), clock.wall_ms()) == (6.5, 500)


def test_the_system_clock_has_the_documented_units() -> None:
    clock = SystemClock()
    assert clock.monotonic() <= clock.monotonic()
    assert clock.wall_ms() == pytest.approx(__import__("time").time() * 1000, abs=60_000)


def descriptors_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the eventfds that are opened from now on."""
    opened: list[int] = []
    if hasattr(os, "eventfd"):
        real = os.eventfd

        def eventfd(*arguments: int) -> int:
            opened.append(real(*arguments))
            return opened[-1]

        monkeypatch.setattr(os, "eventfd", eventfd)
    return opened


@pytest.mark.parametrize("eventfd", [True, False])
async def test_results_are_delivered_after_the_end_with_and_without_an_eventfd(
    eventfd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not eventfd:
        monkeypatch.delattr(os, "eventfd", raising=False)
    opened = descriptors_of(monkeypatch)
    worker = ThreadWorker(asyncio.get_running_loop(), threads=2)
    seen: list[int | None] = []
    finished = asyncio.Event()

    def done(result: int | None, error: BaseException | None) -> None:
        seen.append(result)
        if len(seen) == 50:
            finished.set()

    for number in range(50):
        worker.submit(lambda number=number: number, done)  # type: ignore[misc]
    worker.close()
    assert not seen, "the loop had no turn yet"
    async with asyncio.timeout(10):
        await finished.wait()
    assert sorted(seen, key=str) == sorted(range(50), key=str)
    assert bool(opened) is (eventfd and hasattr(os, "eventfd"))
    for descriptor in opened:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="Linux only")
def test_a_worker_that_outlives_its_loop_closes_its_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = descriptors_of(monkeypatch)
    loop = asyncio.new_event_loop()
    worker = ThreadWorker(loop, threads=1)
    (descriptor,) = opened
    loop.close()
    worker.submit(lambda: 1, lambda _, __: pytest.fail("there is no loop"))
    worker.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
