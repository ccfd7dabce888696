"""The thread of a blocking object: what cannot be started says so at once, and is not kept as one that was closed."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from raftlog.client.blocking import loop_thread as blocking
from raftlog.errors import RetriableError
from raftlog.sync import Admin
from spark_source import connections


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
    """A worker lives over many tasks: one of them that has no descriptors left must not fail all that follow."""
    monkeypatch.setattr(connections, "_shared", {})
    with monkeypatch.context() as patch:
        short(patch)
        with pytest.raises(RetriableError):
            connections.shared(Options())

    async def one() -> int:
        return 1

    made = connections.shared(Options())
    assert made.run(one) == 1
    made.close()


def test_a_thread_that_begins_too_late_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    may_begin, ended = threading.Event(), threading.Event()
    run = blocking.LoopThread._run

    def late(thread: blocking.LoopThread) -> None:
        may_begin.wait()
        run(thread)
        ended.set()

    monkeypatch.setattr(blocking, "START_SECONDS", 0.01)
    monkeypatch.setattr(blocking.LoopThread, "_run", late)
    with pytest.raises(RetriableError, match="did not start"):
        Admin("127.0.0.1:1")
    may_begin.set()
    assert ended.wait(10)


def test_a_fork_while_a_call_is_handed_over_leaves_nobody_waiting() -> None:
    """The child has the lock as it was, and nobody who will let go of it."""
    admin = Admin("127.0.0.1:1")
    thread = admin._thread
    told: list[Any] = []

    def in_the_child() -> None:
        try:
            admin.health()
        except RuntimeError as error:
            told.append(str(error))
        thread.stop()
        told.append("stopped")

    with thread._lock:
        thread._process -= 1  # as if it were another's
        child = threading.Thread(target=in_the_child, daemon=True)
        child.start()
        child.join(5)
        thread._process += 1
    assert told == ["this admin was made before a fork: make one in each process", "stopped"]
    admin.close()
