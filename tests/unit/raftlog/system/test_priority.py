"""Threads whose work may wait have a lower priority if the system supports it for threads, and the former otherwise."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from raftlog.system.priority import BACKGROUND_NICE, lower_priority
from raftlog.system.runtime import ThreadWorker

linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")


def nice(thread: int = 0) -> int:
    """The nice value of a thread; 0: of the calling one."""
    return os.getpriority(os.PRIO_PROCESS, thread)


def in_a_thread(work: Callable[[], None]) -> int:
    """The nice value of a new thread after its work."""
    found: list[int] = []
    thread = threading.Thread(target=lambda: (work(), found.append(nice())))
    thread.start()
    thread.join()
    return found[0]


@linux
async def test_all_threads_of_a_worker_get_it_and_no_other_thread() -> None:
    before = nice()
    plain = ThreadWorker(asyncio.get_running_loop(), threads=1)
    worker = ThreadWorker(asyncio.get_running_loop(), threads=2, initializer=lower_priority)
    both, finished = threading.Barrier(2, timeout=10), asyncio.Event()
    values: list[int | None] = []

    def work() -> int:
        both.wait()  # Each thread has one of the two.
        return nice()

    def done(value: int | None, error: BaseException | None) -> None:
        assert error is None
        values.append(value)
        if len(values) == 2:
            finished.set()

    for _ in range(2):
        worker.submit(work, done)
    async with asyncio.timeout(10):
        await finished.wait()
    assert values == [max(before, BACKGROUND_NICE)] * 2
    assert [nice(thread) for thread in (0, *plain.native_ids)] == [before] * 2
    worker.close()
    plain.close()


@linux
def test_a_thread_with_a_lower_priority_keeps_it() -> None:
    def work() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 15)
        lower_priority()

    assert in_a_thread(work) == 15


@linux
def test_if_it_is_forbidden_a_line_says_so_and_nothing_else_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    before = nice()
    monkeypatch.setattr(os, "setpriority", forbidden)
    with capture_logs() as lines:
        assert in_a_thread(lower_priority) == before
    assert [(line["event"], line["reason"]) for line in lines] == [
        ("priority not lowered", "[Errno 1] Operation not permitted")
    ]


def test_a_system_where_it_is_the_processs_is_left_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    before = nice()
    monkeypatch.setattr(sys, "platform", "darwin")
    with capture_logs() as lines:
        assert in_a_thread(lower_priority) == before
    assert lines == []
