"""A node's threads use the batch scheduling policy if the system supports it, and the former one otherwise."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from raftlog.broker.node.scheduling import schedule_in_batches
from raftlog.config import load_node_config
from raftlog.system.runtime import ThreadWorker

linux = pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="Linux only")


def in_a_thread(work: Callable[[], None]) -> None:
    """The policy belongs to a thread: the tests' own keeps its."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


@linux
async def test_the_loop_its_workers_and_their_threads_use_the_batch_policy() -> None:
    worker = ThreadWorker(asyncio.get_running_loop(), threads=2)
    inherited: list[int] = []

    def work() -> None:
        schedule_in_batches((worker,))
        assert os.sched_getscheduler(0) == os.SCHED_BATCH
        begun = threading.Thread(target=lambda: inherited.append(os.sched_getscheduler(0)))
        begun.start()
        begun.join()

    before = os.sched_getscheduler(0)
    in_a_thread(work)
    assert [os.sched_getscheduler(thread) for thread in worker.native_ids] == [os.SCHED_BATCH] * 2
    assert inherited == [os.SCHED_BATCH]
    assert os.sched_getscheduler(0) == before, "threads that began earlier keep theirs: the quorum's"
    worker.close()


@linux
def test_if_it_is_forbidden_a_line_says_so_and_nothing_else_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", forbidden)
    with capture_logs() as lines:
        in_a_thread(lambda: schedule_in_batches(()))
    assert [(line["event"], line["reason"]) for line in lines] == [
        ("not scheduled in batches", "[Errno 1] Operation not permitted")
    ]


def test_a_system_without_it_is_left_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "SCHED_BATCH", raising=False)
    with capture_logs() as lines:
        in_a_thread(lambda: schedule_in_batches(()))
    assert lines == []


def test_it_can_be_switched_off() -> None:
    assert load_node_config("").scheduling == "batch"
    assert load_node_config('scheduling = "other"').scheduling == "other"
