"""The scheduler and worker on a real loop and real threads."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from raftlog.system.clock import ManualClock, SystemClock
from raftlog.system.runtime import LoopScheduler, ThreadWorker


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


async def test_timers_of_one_instant_are_due_in_the_order_they_were_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a machine that has been up for years, where a nanosecond is lost in the clock's own steps."""
    loop = asyncio.get_running_loop()
    scheduler = LoopScheduler(loop)
    due: list[float] = []
    monkeypatch.setattr(loop, "time", lambda: 1e8)
    monkeypatch.setattr(loop, "call_at", lambda when, _: due.append(when))
    for _ in range(5):
        scheduler.call_later(0.5, lambda: None)
    assert due == sorted(set(due)) and len(due) == 5


async def test_results_come_back_on_the_loop_each_once() -> None:
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


async def test_a_callback_that_raises_does_not_take_the_others_with_it() -> None:
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


async def test_many_results_at_once_leave_the_loop_to_others_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
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

    with worker._lock:
        worker._results.extend((done, 0, None) for _ in range(30))
        worker._waking = True
    loop.call_soon(worker._take_results)
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


def test_manual_clock_moves_only_by_hand() -> None:
    clock = ManualClock(monotonic=5.0, wall_ms=1_000)
    clock.advance(1.5)
    assert (clock.monotonic(), clock.wall_ms()) == (6.5, 2_500)
    clock.jump_wall(-2_000)
    assert (clock.monotonic(), clock.wall_ms()) == (6.5, 500)


def test_system_clock_has_the_units_it_says() -> None:
    clock = SystemClock()
    assert clock.monotonic() <= clock.monotonic()
    assert clock.wall_ms() == pytest.approx(__import__("time").time() * 1000, abs=60_000)


@pytest.mark.parametrize("eventfd", [True, False])
async def test_results_are_delivered_after_the_end_with_and_without_an_eventfd(
    eventfd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not eventfd:
        monkeypatch.delattr(os, "eventfd", raising=False)
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
    assert worker._waker._descriptor == -1, "the descriptor is closed"


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="Linux only")
def test_a_worker_that_outlives_its_loop_lets_go_of_its_descriptor() -> None:
    loop = asyncio.new_event_loop()
    worker = ThreadWorker(loop, threads=1)
    descriptor = worker._waker._descriptor
    loop.close()
    worker.submit(lambda: 1, lambda _, __: pytest.fail("there is no loop"))
    worker.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
