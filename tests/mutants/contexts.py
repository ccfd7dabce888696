"""A pytest plugin: what a run of tests was like, as JSON in the file that `MUTANTS_REPORT` names.

Under `coverage run` each test is a context of its own, so the lines that it reaches are known by its name, also those
that run in callbacks and other threads.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

try:
    from coverage import Coverage
except ImportError:  # judged mutants run without it
    Coverage = None  # type: ignore[assignment,misc]

seconds: dict[str, float] = {}
failed: dict[str, None] = {}
skipped: dict[str, None] = {}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    current = None if Coverage is None else Coverage.current()
    if current is not None:
        current.switch_context(item.nodeid)
    yield
    if current is not None:
        current.switch_context("")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    seconds[report.nodeid] = seconds.get(report.nodeid, 0.0) + report.duration
    if report.failed:
        failed[report.nodeid] = None
    elif report.skipped:
        skipped[report.nodeid] = None


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        failed[report.nodeid] = None


def pytest_sessionfinish() -> None:
    file = os.environ.get("MUTANTS_REPORT")
    if file:
        Path(file).write_text(json.dumps({"seconds": seconds, "failed": list(failed), "skipped": list(skipped)}))
