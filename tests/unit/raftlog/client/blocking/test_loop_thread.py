"""The thread of a blocking object: a failed start is reported at once, and does not count as closed."""

from __future__ import annotations

import asyncio
import errno
import multiprocessing
import os
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import pytest

from raftlog.client.blocking import loop_thread as blocking
from raftlog.errors import RetriableError
from raftlog.sync import Admin
from spark_source import connections
from spark_source.options.cluster import ClusterOptions


@dataclass
class Options:
    bootstrap: str = "127.0.0.1:1"
    tls_authority: str | None = None


def no_descriptors(*_: Any) -> Any:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def no_thread(*_: Any) -> Any:
    raise RuntimeError("can't start new thread")


def short_of_descriptors(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(asyncio.events, "new_event_loop", no_descriptors)


def short_of_threads(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(threading.Thread, "start", no_thread)


@pytest.mark.parametrize("short", [short_of_descriptors, short_of_threads])
def test_a_shortage_at_the_start_is_told_as_one(short: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "START_SECONDS", 3600.0)
    with monkeypatch.context() as patch:
        short(patch)
        with pytest.raises(RetriableError) as error:
            Admin("127.0.0.1:1")
    assert error.value.code == "overloaded"
    assert "open files" in error.value.detail or "new thread" in error.value.detail


@pytest.mark.parametrize("short", [short_of_descriptors, short_of_threads])
def test_a_worker_of_spark_connects_once_a_shortage_is_over(short: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker process runs many tasks: one that runs out of descriptors must not fail its successors."""
    with monkeypatch.context() as patch:
        short(patch)
        with pytest.raises(RetriableError):
            connections.shared(ClusterOptions("127.0.0.1:1"))

    async def one() -> int:
        return 1

    made = connections.shared(ClusterOptions("127.0.0.1:1"))
    assert made.run(one) == 1
    made.close()


def test_a_thread_that_begins_too_late_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    may_begin, ended = threading.Event(), threading.Event()

    class Late(threading.Thread):
        def run(self) -> None:
            may_begin.wait()
            super().run()
            ended.set()

    monkeypatch.setattr(blocking, "START_SECONDS", 0.01)
    monkeypatch.setattr(threading, "Thread", Late)
    with pytest.raises(RetriableError, match="did not start"):
        Admin("127.0.0.1:1")
    may_begin.set()
    assert ended.wait(10)


def test_a_fork_while_a_call_is_handed_over_leaves_nobody_waiting() -> None:
    """The child inherits the held lock, without the thread that would release it."""
    owner = Options()  # its end would end the thread
    thread = blocking.LoopThread(owner, "admin")
    handing_over, forked = threading.Event(), threading.Event()

    async def nothing() -> None:
        pass

    def slow_to_begin() -> Coroutine[Any, Any, None]:
        handing_over.set()  # the lock is held during this call
        forked.wait()
        return nothing()

    submitting = threading.Thread(target=thread.submit, args=(slow_to_begin,), daemon=True)
    submitting.start()
    assert handing_over.wait(10)
    context = multiprocessing.get_context("fork")
    told = context.SimpleQueue()

    def in_the_child() -> None:
        try:
            thread.run(nothing)
        except RuntimeError as error:
            told.put(str(error))
        thread.stop()
        told.put("stopped")

    child = context.Process(target=in_the_child, daemon=True)
    child.start()
    child.join(10)
    forked.set()
    submitting.join(10)
    assert child.exitcode == 0
    assert told.get() == "this admin was made before a fork: make one in each process"
    assert told.get() == "stopped"
    thread.stop()
