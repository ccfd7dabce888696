"""A pytest plugin that records a run: one line of JSON per test, in the file that `MUTANTS_REPORT` names.

With `MUTANTS_TEST_SECONDS` a test that takes longer fails, whatever it is doing.

Under `coverage run` each test is a context of its own, so the lines that it reaches are recorded under its name,
including those that run in callbacks and other threads.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

try:
    from coverage import Coverage
except ImportError:  # judged mutants run without coverage
    Coverage = None  # type: ignore[assignment,misc]

TEST_SECONDS = float(os.environ.get("MUTANTS_TEST_SECONDS", "0"))
REPORT = os.environ.get("MUTANTS_REPORT")
seconds: dict[str, float] = {}
outcomes: dict[str, str] = {}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    current = None if Coverage is None else Coverage.current()
    if current is not None:
        current.switch_context(item.nodeid)
    signal.setitimer(signal.ITIMER_REAL, TEST_SECONDS)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    if current is not None:
        current.switch_context("")


def _no_end(number: int, frame: object) -> None:
    pytest.fail(f"no end after {TEST_SECONDS} s")


signal.signal(signal.SIGALRM, _no_end)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    seconds[report.nodeid] = seconds.get(report.nodeid, 0.0) + report.duration
    if not report.passed:
        outcomes[report.nodeid] = report.outcome


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        outcomes[report.nodeid] = "failed"
        pytest_runtest_logfinish(report.nodeid)


def pytest_runtest_logfinish(nodeid: str) -> None:
    """Write the line after each test, since the run may be stopped."""
    if REPORT:
        line = {"test": nodeid, "seconds": seconds.get(nodeid, 0.0), "outcome": outcomes.get(nodeid, "passed")}
        with Path(REPORT).open("a") as report:
            report.write(json.dumps(line) + "\n")
