"""The number of descriptors that connections may take, and the messages when there are none."""

from __future__ import annotations

import errno
import os
import resource
from typing import Any

import pytest

from raftlog.broker.node.descriptors import (
    LEAST_CONNECTIONS,
    MIN_DESCRIPTORS,
    TELL_SECONDS,
    DescriptorBudget,
    raise_descriptor_limit,
)
from raftlog.errors import InvalidRequest

EMFILE = OSError(errno.EMFILE, os.strerror(errno.EMFILE))


class ManualClock:
    """Time passes when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.now * 1000)


class Lines:
    """A logger that keeps its lines."""

    def __init__(self) -> None:
        self.errors: list[dict[str, Any]] = []

    def info(self, event: str, **fields: Any) -> None:
        raise AssertionError(event)

    def warning(self, event: str, **fields: Any) -> None:
        raise AssertionError(event)

    def error(self, event: str, **fields: Any) -> None:
        self.errors.append({"event": event} | fields)


def budget(limit: int | None, replicas: int) -> DescriptorBudget:
    return DescriptorBudget(limit, lambda: replicas, ManualClock(), Lines())


def test_connections_get_the_descriptors_that_logs_do_not_need() -> None:
    few, many = budget(100_000, 10).connections(), budget(100_000, 10_000).connections()
    assert few is not None and many is not None
    assert few - many == 2 * 9_990 // 4
    assert budget(None, 10_000).connections() is None


def test_both_listeners_together_leave_the_reserve() -> None:
    for limit in (MIN_DESCRIPTORS, 4_096, 65_536):
        for replicas in (0, 100, 300):
            one = budget(limit, replicas)
            connections = one.connections()
            assert connections is not None
            assert connections == LEAST_CONNECTIONS or 2 * 2 * connections + one.reserved <= limit


def test_a_limit_that_is_too_low_for_the_replicas_is_a_problem_and_leaves_some_connections() -> None:
    one = budget(1_024, 1_000)
    assert one.connections() == LEAST_CONNECTIONS
    (line,) = one.problems()
    assert "may open 1024 files" in line and "ulimit -n" in line
    assert budget(1_024, 100).problems() == []


def test_a_shortage_is_logged_now_and_then_and_is_a_problem_meanwhile() -> None:
    clock, lines = ManualClock(), Lines()
    one = DescriptorBudget(2_000, lambda: 1, clock, lines)
    for _ in range(1_000):
        one.on_short(EMFILE)
    assert len(lines.errors) == 1
    (line,) = one.problems()
    assert "Too many open files" in line and "ulimit -n" in line
    clock.now += TELL_SECONDS + 1
    assert one.problems() == []
    one.on_short(EMFILE)
    assert [line["times_since_last_line"] for line in lines.errors] == [0, 999]


def test_the_soft_limit_is_raised_to_the_hard_one(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [1_024, 5_000]
    monkeypatch.setattr(resource, "getrlimit", lambda which: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda which, now: limits.__setitem__(slice(None), list(now)))
    assert raise_descriptor_limit() == 5_000
    assert limits == [5_000, 5_000]


def test_a_limit_below_any_nodes_need_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 256))
    with pytest.raises(InvalidRequest, match="ulimit -n"):
        raise_descriptor_limit()
    unlimited = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda which: (unlimited, unlimited))
    assert raise_descriptor_limit() is None
